define internal void @"axpy.body"(ptr noalias readonly %b0, ptr noalias readonly %b1, ptr noalias %b2, float %s0, i64 %s1, i64 %begin, i64 %end) nounwind {
entry:
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %cube, label %done
cube:
  %cube.x = phi i64 [ %begin, %entry ], [ %cube.next, %next ]
  %v1 = mul i64 %cube.x, 1024
  %v2 = add i64 %v1, 1024
  %v3 = call i64 @llvm.smin.i64(i64 %v2, i64 %s1)
  %v7 = icmp slt i64 %v1, %v3
  br i1 %v7, label %body4, label %done6
body4:
  %i6 = phi i64 [ %v1, %cube ], [ %n6, %next5 ]
  %v8 = getelementptr float, ptr %b0, i64 %i6
  %v9 = load <16 x float>, ptr %v8, align 4, !invariant.load !0
  %v10 = getelementptr float, ptr %b1, i64 %i6
  %v11 = load <16 x float>, ptr %v10, align 4, !invariant.load !0
  %v12 = insertelement <16 x float> poison, float %s0, i64 0
  %v13 = shufflevector <16 x float> %v12, <16 x float> poison, <16 x i32> zeroinitializer
  %v14 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v13, <16 x float> %v9, <16 x float> %v11)
  %v15 = getelementptr float, ptr %b2, i64 %i6
  store <16 x float> %v14, ptr %v15, align 64, !nontemporal !1
  br label %next5
next5:
  %n6 = add nsw i64 %i6, 16
  %v16 = icmp slt i64 %n6, %v3
  br i1 %v16, label %body4, label %done6, !llvm.loop !2
done6:
  br label %next
next:
  %cube.next = add nsw i64 %cube.x, 1
  %more = icmp slt i64 %cube.next, %end
  br i1 %more, label %cube, label %done, !llvm.loop !2
done:
  fence seq_cst
  ret void
}
define void @"axpy"(ptr noalias readonly %buffers, ptr noalias readonly %scalars, i64 %begin, i64 %end) nounwind {
  %b0.at = getelementptr ptr, ptr %buffers, i64 0
  %b0 = load ptr, ptr %b0.at
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %b2.at = getelementptr ptr, ptr %buffers, i64 2
  %b2 = load ptr, ptr %b2.at
  %s0.at = getelementptr i64, ptr %scalars, i64 0
  %s0 = load float, ptr %s0.at
  %s1.at = getelementptr i64, ptr %scalars, i64 1
  %s1 = load i64, ptr %s1.at
  call void @"axpy.body"(ptr %b0, ptr %b1, ptr %b2, float %s0, i64 %s1, i64 %begin, i64 %end)
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
!0 = !{}
!1 = !{i32 1}
!2 = distinct !{!2, !3, !4}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}

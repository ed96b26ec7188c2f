define internal void @"row_maximum.body"(ptr noalias readonly %b0, ptr noalias %b1, i64 %s0, i64 %begin, i64 %end) nounwind {
entry:
  %x2 = alloca <8 x float>, align 32
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %cube, label %done
cube:
  %cube.x = phi i64 [ %begin, %entry ], [ %cube.next, %next ]
  store <8 x float> splat (float 0xFFF0000000000000), ptr %x2
  %v4 = icmp slt i64 0, %s0
  br i1 %v4, label %body1, label %done3
body1:
  %i3 = phi i64 [ 0, %cube ], [ %n3, %next2 ]
  %v5 = insertelement <8 x i64> poison, i64 %i3, i64 0
  %v6 = shufflevector <8 x i64> %v5, <8 x i64> poison, <8 x i32> zeroinitializer
  %v7 = add <8 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>, %v6
  %v8 = insertelement <8 x i64> poison, i64 %s0, i64 0
  %v9 = shufflevector <8 x i64> %v8, <8 x i64> poison, <8 x i32> zeroinitializer
  %v10 = icmp slt <8 x i64> %v7, %v9
  %v11 = mul i64 %cube.x, %s0
  %v12 = add i64 %v11, %i3
  %v13 = getelementptr i16, ptr %b0, i64 %v12
  %v14 = call <8 x i16> @llvm.masked.load.v8i16.p0(ptr align 2 %v13, <8 x i1> %v10, <8 x i16> zeroinitializer)
  %v15 = zext <8 x i16> %v14 to <8 x i32>
  %v16 = shl <8 x i32> %v15, splat (i32 16)
  %v17 = bitcast <8 x i32> %v16 to <8 x float>
  %v18 = load <8 x float>, ptr %x2
  %v19 = fcmp ogt <8 x float> %v18, %v17
  %v20 = select <8 x i1> %v19, <8 x float> %v18, <8 x float> %v17
  %v21 = fcmp uno <8 x float> %v18, %v18
  %v22 = select <8 x i1> %v21, <8 x float> %v18, <8 x float> %v20
  %v23 = load <8 x float>, ptr %x2
  %v24 = select <8 x i1> %v10, <8 x float> %v22, <8 x float> %v23
  store <8 x float> %v24, ptr %x2
  br label %next2
next2:
  %n3 = add nsw i64 %i3, 8
  %v25 = icmp slt i64 %n3, %s0
  br i1 %v25, label %body1, label %done3, !llvm.loop !2
done3:
  %v26 = load <8 x float>, ptr %x2
  %v27 = shufflevector <8 x float> %v26, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v28 = shufflevector <8 x float> %v26, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v29 = fcmp ogt <4 x float> %v27, %v28
  %v30 = select <4 x i1> %v29, <4 x float> %v27, <4 x float> %v28
  %v31 = fcmp uno <4 x float> %v27, %v27
  %v32 = select <4 x i1> %v31, <4 x float> %v27, <4 x float> %v30
  %v33 = shufflevector <4 x float> %v32, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v34 = shufflevector <4 x float> %v32, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v35 = fcmp ogt <2 x float> %v33, %v34
  %v36 = select <2 x i1> %v35, <2 x float> %v33, <2 x float> %v34
  %v37 = fcmp uno <2 x float> %v33, %v33
  %v38 = select <2 x i1> %v37, <2 x float> %v33, <2 x float> %v36
  %v39 = extractelement <2 x float> %v38, i64 0
  %v40 = extractelement <2 x float> %v38, i64 1
  %v41 = fcmp ogt float %v39, %v40
  %v42 = select i1 %v41, float %v39, float %v40
  %v43 = fcmp uno float %v39, %v39
  %v44 = select i1 %v43, float %v39, float %v42
  %v45 = getelementptr float, ptr %b1, i64 %cube.x
  store float %v44, ptr %v45, align 4
  br label %next
next:
  %cube.next = add nsw i64 %cube.x, 1
  %more = icmp slt i64 %cube.next, %end
  br i1 %more, label %cube, label %done, !llvm.loop !2
done:
  ret void
}
define void @"row_maximum"(ptr noalias readonly %buffers, ptr noalias readonly %scalars, i64 %begin, i64 %end) nounwind {
  %b0.at = getelementptr ptr, ptr %buffers, i64 0
  %b0 = load ptr, ptr %b0.at
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %s0.at = getelementptr i64, ptr %scalars, i64 0
  %s0 = load i64, ptr %s0.at
  call void @"row_maximum.body"(ptr %b0, ptr %b1, i64 %s0, i64 %begin, i64 %end)
  ret void
}
declare <8 x i16> @llvm.masked.load.v8i16.p0(ptr align 2, <8 x i1>, <8 x i16>)
!0 = !{}
!1 = !{i32 1}
!2 = distinct !{!2, !3, !4}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}

define internal void @"search.body"(ptr noalias readonly %b0, ptr %b1, i32 %s0, i64 %s1, i64 %cubes, i64 %begin, i64 %end) nounwind {
entry:
  %x3 = alloca i64, align 8
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %cube, label %done
cube:
  %cube.x = phi i64 [ %begin, %entry ], [ %cube.next, %next ]
  store i64 %cube.x, ptr %x3
  br label %body1
body1:
  %v3 = load i64, ptr %x3
  %v4 = icmp sge i64 %v3, %s1
  br i1 %v4, label %then5, label %join6
then5:
  br label %done2
join6:
  %v7 = load i64, ptr %x3
  %v8 = getelementptr i32, ptr %b0, i64 %v7
  %v9 = load i32, ptr %v8, align 4, !invariant.load !0
  %v10 = icmp eq i32 %v9, %s0
  br i1 %v10, label %then11, label %join12
then11:
  %v13 = load i64, ptr %x3
  %v14 = trunc i64 %v13 to i32
  %v15 = atomicrmw min ptr %b1, i32 %v14 monotonic
  br label %join12
join12:
  %v16 = load i64, ptr %x3
  %v17 = add i64 %v16, %cubes
  store i64 %v17, ptr %x3
  br label %body1
done2:
  br label %next
next:
  %cube.next = add nsw i64 %cube.x, 1
  %more = icmp slt i64 %cube.next, %end
  br i1 %more, label %cube, label %done, !llvm.loop !2
done:
  ret void
}
define void @"search"(ptr noalias readonly %buffers, ptr noalias readonly %scalars, i64 %begin, i64 %end) nounwind {
  %b0.at = getelementptr ptr, ptr %buffers, i64 0
  %b0 = load ptr, ptr %b0.at
  %b1.at = getelementptr ptr, ptr %buffers, i64 1
  %b1 = load ptr, ptr %b1.at
  %s0.at = getelementptr i64, ptr %scalars, i64 0
  %s0 = load i32, ptr %s0.at
  %s1.at = getelementptr i64, ptr %scalars, i64 1
  %s1 = load i64, ptr %s1.at
  %cubes.at = getelementptr i64, ptr %scalars, i64 2
  %cubes = load i64, ptr %cubes.at
  call void @"search.body"(ptr %b0, ptr %b1, i32 %s0, i64 %s1, i64 %cubes, i64 %begin, i64 %end)
  ret void
}
!0 = !{}
!1 = !{i32 1}
!2 = distinct !{!2, !3, !4}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}

"""The native walker as LLVM text: reads a program's table and runs its steps in order.

A *program* is a table of 64-bit cells. The walker finds the buffers of each launch and runs the
kernel on the calling thread or shares it with the pool (`cpu_runtime`). The bodies of control flow
are ranges of records, on which the walker calls itself.

Table:  arguments | registers | frame | length of records | records ...
Record: kind | length | ... , where a place is two cells, a base and an offset in bytes:
  launch   kernel | cubes | grain | buffers | place of each buffer ... | scalars ...
  copy     target place | source place | bytes
  loop     turns | registers | rotations | length of body | (base, start place, step) of each
           register ... | (read, write, spare) of each rotation ... | body ...
  while    place of the bool | registers | rotations | length of test | length of body |
           registers ... | rotations ... | test ... | body ...
  branch   place of the i32 | branches | length of each branch ... | branches ...
  call     a Python function of one number | buffers | place of each buffer ...

*Bases* are the pointers of one run: a null base that turns an offset into an address (constants),
the entry's arguments in order, and the registers. The *frame* is room for the pointers of the step
with the most buffers. A kernel is `void(ptr buffers, ptr scalars, i64 begin, i64 end)`; a Python
function is given the frame's address.
"""

from __future__ import annotations

LAUNCH, COPY, LOOP, WHILE, BRANCH, CALL = range(6)
"""The kinds of records."""

TABLE_HEADER = 4
LAUNCH_HEADER = 6
LOOP_HEADER = 6
WHILE_HEADER = 8
BRANCH_HEADER = 5
CALL_HEADER = 4

INTERRUPT_NANOSECONDS = 500_000_000
"""How long a program runs at most, between launches, before it looks for signals."""

EXPORTS = ("enter_light", "enter_heavy")

CALLS = (
    "PyLong_AsVoidPtr",
    "PyLong_FromLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_CheckSignals",
    "PyLong_FromVoidPtr",
    "PyObject_CallFunctionObjArgs",
    "Py_DecRef",
)
"""What the text calls of Python; `@now` and `@share` it finds in the module it is put into."""

_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_CheckSignals()
declare ptr @PyLong_FromVoidPtr(ptr)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare void @Py_DecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Run the records from %begin to %end; true if Python code raised, the GIL then being held.
; %run: thread state while the GIL is released or null, and when signals were last looked for.
define internal i1 @walk(ptr %begin, ptr %end, ptr %bases, ptr %frame, ptr %run) {{
entry:
  br label %next
next:
  %record = phi ptr
    [ %begin, %entry ], [ %after, %launched ], [ %after, %looked ], [ %after, %copied ]
  %over = icmp uge ptr %record, %end
  br i1 %over, label %finish, label %read
finish:
  ret i1 false
read:
  %length_at = getelementptr i64, ptr %record, i64 1
  %length = load i64, ptr %length_at
  %after = getelementptr i64, ptr %record, i64 %length
  %kind = load i64, ptr %record
  switch i64 %kind, label %unknown [
    i64 {launch}, label %launch
    i64 {copy}, label %copy
    i64 {loop}, label %loop
    i64 {while}, label %while
    i64 {branch}, label %branch
    i64 {call}, label %call
  ]
unknown:
  unreachable
copy:
  %target_at = getelementptr i64, ptr %record, i64 2
  %target = call ptr @place(ptr %target_at, ptr %bases)
  %source_at = getelementptr i64, ptr %record, i64 4
  %source = call ptr @place(ptr %source_at, ptr %bases)
  %bytes_at = getelementptr i64, ptr %record, i64 6
  %bytes = load i64, ptr %bytes_at
  %same = icmp eq ptr %target, %source
  br i1 %same, label %copied, label %move
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  br label %copied
copied:
  br label %next
loop:
  %loop_raised = call i1 @run_loop(ptr %record, ptr %bases, ptr %frame, ptr %run)
  br i1 %loop_raised, label %stop, label %copied
while:
  %while_raised = call i1 @run_while(ptr %record, ptr %bases, ptr %frame, ptr %run)
  br i1 %while_raised, label %stop, label %copied
branch:
  %branch_raised = call i1 @run_branch(ptr %record, ptr %bases, ptr %frame, ptr %run)
  br i1 %branch_raised, label %stop, label %copied
call:
  %call_raised = call i1 @run_call(ptr %record, ptr %bases, ptr %frame, ptr %run)
  br i1 %call_raised, label %stop, label %copied
launch:
  %kernel_at = getelementptr i64, ptr %record, i64 2
  %kernel = load ptr, ptr %kernel_at
  %cubes_at = getelementptr i64, ptr %record, i64 3
  %cubes = load i64, ptr %cubes_at
  %grain_at = getelementptr i64, ptr %record, i64 4
  %grain = load i64, ptr %grain_at
  %count_at = getelementptr i64, ptr %record, i64 5
  %count = load i64, ptr %count_at
  %refs = getelementptr i64, ptr %record, i64 {launch_header}
  %cells = shl i64 %count, 1
  %scalars = getelementptr i64, ptr %refs, i64 %cells
  call void @resolve(ptr %refs, i64 %count, ptr %bases, ptr %frame)
  %small = icmp ule i64 %cubes, %grain
  br i1 %small, label %here, label %pool
here:
  call void %kernel(ptr %frame, ptr %scalars, i64 0, i64 %cubes)
  br label %launched
pool:
  call void @share(ptr %kernel, ptr %frame, ptr %scalars, i64 %cubes, i64 %grain)
  br label %launched
launched:
  %state = load ptr, ptr %run
  %held = icmp eq ptr %state, null
  br i1 %held, label %next, label %watch
watch:
  %raised = call i1 @look_for_signals(ptr %run)
  br i1 %raised, label %stop, label %looked
looked:
  br label %next
stop:
  ret i1 true
}}

; The address that the two cells at %ref stand for.
define internal ptr @place(ptr %ref, ptr %bases) alwaysinline {{
  %index = load i64, ptr %ref
  %offset_at = getelementptr i64, ptr %ref, i64 1
  %offset = load i64, ptr %offset_at
  %base_at = getelementptr ptr, ptr %bases, i64 %index
  %base = load ptr, ptr %base_at
  %address = getelementptr i8, ptr %base, i64 %offset
  ret ptr %address
}}

; Write the addresses of %count places to the frame.
define internal void @resolve(ptr %refs, i64 %count, ptr %bases, ptr %frame) alwaysinline {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %one ]
  %over = icmp uge i64 %i, %count
  br i1 %over, label %finish, label %one
one:
  %ref = getelementptr [2 x i64], ptr %refs, i64 %i
  %address = call ptr @place(ptr %ref, ptr %bases)
  %slot = getelementptr ptr, ptr %frame, i64 %i
  store ptr %address, ptr %slot
  %i_next = add i64 %i, 1
  br label %next
finish:
  ret void
}}

; Point %count registers at their starts.
define internal void @begin_registers(ptr %registers, i64 %count, ptr %bases) {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %one ]
  %over = icmp uge i64 %i, %count
  br i1 %over, label %finish, label %one
one:
  %register = getelementptr [4 x i64], ptr %registers, i64 %i
  %index = load i64, ptr %register
  %start_at = getelementptr i64, ptr %register, i64 1
  %start = call ptr @place(ptr %start_at, ptr %bases)
  %slot = getelementptr ptr, ptr %bases, i64 %index
  store ptr %start, ptr %slot
  %i_next = add i64 %i, 1
  br label %next
finish:
  ret void
}}

; After a turn: registers step on, and rotations make what was written be read.
define internal void @turn(
    ptr %registers, i64 %count, ptr %rotations, i64 %rotation_count, ptr %bases) {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %one ]
  %over = icmp uge i64 %i, %count
  br i1 %over, label %rotate, label %one
one:
  %register = getelementptr [4 x i64], ptr %registers, i64 %i
  %index = load i64, ptr %register
  %step_at = getelementptr i64, ptr %register, i64 3
  %step = load i64, ptr %step_at
  %slot = getelementptr ptr, ptr %bases, i64 %index
  %pointer = load ptr, ptr %slot
  %moved = getelementptr i8, ptr %pointer, i64 %step
  store ptr %moved, ptr %slot
  %i_next = add i64 %i, 1
  br label %next
rotate:
  %k = phi i64 [ 0, %next ], [ %k_next, %three ]
  %done = icmp uge i64 %k, %rotation_count
  br i1 %done, label %finish, label %three
three:
  %rotation = getelementptr [3 x i64], ptr %rotations, i64 %k
  %read = load i64, ptr %rotation
  %write_at = getelementptr i64, ptr %rotation, i64 1
  %write = load i64, ptr %write_at
  %spare_at = getelementptr i64, ptr %rotation, i64 2
  %spare = load i64, ptr %spare_at
  %read_slot = getelementptr ptr, ptr %bases, i64 %read
  %write_slot = getelementptr ptr, ptr %bases, i64 %write
  %spare_slot = getelementptr ptr, ptr %bases, i64 %spare
  %written = load ptr, ptr %write_slot
  %free = load ptr, ptr %spare_slot
  store ptr %written, ptr %read_slot
  store ptr %free, ptr %write_slot
  store ptr %written, ptr %spare_slot
  %k_next = add i64 %k, 1
  br label %rotate
finish:
  ret void
}}

define internal i1 @run_loop(ptr %record, ptr %bases, ptr %frame, ptr %run) {{
entry:
  %turns_at = getelementptr i64, ptr %record, i64 2
  %turns = load i64, ptr %turns_at
  %count_at = getelementptr i64, ptr %record, i64 3
  %count = load i64, ptr %count_at
  %rotation_count_at = getelementptr i64, ptr %record, i64 4
  %rotation_count = load i64, ptr %rotation_count_at
  %body_length_at = getelementptr i64, ptr %record, i64 5
  %body_length = load i64, ptr %body_length_at
  %registers = getelementptr i64, ptr %record, i64 {loop_header}
  %rotations = getelementptr [4 x i64], ptr %registers, i64 %count
  %body = getelementptr [3 x i64], ptr %rotations, i64 %rotation_count
  %end = getelementptr i64, ptr %body, i64 %body_length
  call void @begin_registers(ptr %registers, i64 %count, ptr %bases)
  br label %next
next:
  %t = phi i64 [ 0, %entry ], [ %t_next, %on ]
  %over = icmp uge i64 %t, %turns
  br i1 %over, label %finish, label %one
one:
  %raised = call i1 @walk(ptr %body, ptr %end, ptr %bases, ptr %frame, ptr %run)
  br i1 %raised, label %stop, label %on
on:
  call void @turn(
    ptr %registers, i64 %count, ptr %rotations, i64 %rotation_count, ptr %bases)
  %t_next = add i64 %t, 1
  br label %next
finish:
  ret i1 false
stop:
  ret i1 true
}}

define internal i1 @run_while(ptr %record, ptr %bases, ptr %frame, ptr %run) {{
entry:
  %predicate_at = getelementptr i64, ptr %record, i64 2
  %count_at = getelementptr i64, ptr %record, i64 4
  %count = load i64, ptr %count_at
  %rotation_count_at = getelementptr i64, ptr %record, i64 5
  %rotation_count = load i64, ptr %rotation_count_at
  %test_length_at = getelementptr i64, ptr %record, i64 6
  %test_length = load i64, ptr %test_length_at
  %body_length_at = getelementptr i64, ptr %record, i64 7
  %body_length = load i64, ptr %body_length_at
  %registers = getelementptr i64, ptr %record, i64 {while_header}
  %rotations = getelementptr [4 x i64], ptr %registers, i64 %count
  %test = getelementptr [3 x i64], ptr %rotations, i64 %rotation_count
  %body = getelementptr i64, ptr %test, i64 %test_length
  %end = getelementptr i64, ptr %body, i64 %body_length
  call void @begin_registers(ptr %registers, i64 %count, ptr %bases)
  br label %next
next:
  %test_raised = call i1 @walk(ptr %test, ptr %body, ptr %bases, ptr %frame, ptr %run)
  br i1 %test_raised, label %stop, label %decide
decide:
  %predicate = call ptr @place(ptr %predicate_at, ptr %bases)
  %value = load i8, ptr %predicate
  %over = icmp eq i8 %value, 0
  br i1 %over, label %finish, label %one
one:
  %raised = call i1 @walk(ptr %body, ptr %end, ptr %bases, ptr %frame, ptr %run)
  br i1 %raised, label %stop, label %on
on:
  call void @turn(
    ptr %registers, i64 %count, ptr %rotations, i64 %rotation_count, ptr %bases)
  %calm = call i1 @between_turns(ptr %run)
  br i1 %calm, label %stop, label %next
finish:
  ret i1 false
stop:
  ret i1 true
}}

define internal i1 @run_branch(ptr %record, ptr %bases, ptr %frame, ptr %run) {{
entry:
  %index_at = getelementptr i64, ptr %record, i64 2
  %index_place = call ptr @place(ptr %index_at, ptr %bases)
  %index = load i32, ptr %index_place
  %wide = sext i32 %index to i64
  %count_at = getelementptr i64, ptr %record, i64 4
  %count = load i64, ptr %count_at
  %lengths = getelementptr i64, ptr %record, i64 {branch_header}
  %first = getelementptr i64, ptr %lengths, i64 %count
  %last = sub i64 %count, 1
  %low = icmp slt i64 %wide, 0
  %floor = select i1 %low, i64 0, i64 %wide
  %high = icmp sgt i64 %floor, %last
  %chosen = select i1 %high, i64 %last, i64 %floor
  br label %skip
skip:
  %i = phi i64 [ 0, %entry ], [ %i_next, %past ]
  %begin = phi ptr [ %first, %entry ], [ %end, %past ]
  %length_at = getelementptr i64, ptr %lengths, i64 %i
  %length = load i64, ptr %length_at
  %end = getelementptr i64, ptr %begin, i64 %length
  %found = icmp eq i64 %i, %chosen
  br i1 %found, label %enter, label %past
past:
  %i_next = add i64 %i, 1
  br label %skip
enter:
  %raised = call i1 @walk(ptr %begin, ptr %end, ptr %bases, ptr %frame, ptr %run)
  ret i1 %raised
}}

; Call a Python function, with the GIL.
define internal i1 @run_call(ptr %record, ptr %bases, ptr %frame, ptr %run) {{
entry:
  %function_at = getelementptr i64, ptr %record, i64 2
  %function = load ptr, ptr %function_at
  %count_at = getelementptr i64, ptr %record, i64 3
  %count = load i64, ptr %count_at
  %refs = getelementptr i64, ptr %record, i64 {call_header}
  call void @resolve(ptr %refs, i64 %count, ptr %bases, ptr %frame)
  %state = load ptr, ptr %run
  %held = icmp eq ptr %state, null
  br i1 %held, label %call, label %acquire
acquire:
  call void @PyEval_RestoreThread(ptr %state)
  br label %call
call:
  %argument = call ptr @PyLong_FromVoidPtr(ptr %frame)
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(
    ptr %function, ptr %argument, ptr null)
  call void @Py_DecRef(ptr %argument)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %stop, label %good
good:
  call void @Py_DecRef(ptr %result)
  br i1 %held, label %finish, label %release
release:
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %run
  br label %finish
finish:
  ret i1 false
stop:
  ret i1 true
}}

; A while loop may turn without a launch: it looks for signals itself.
define internal i1 @between_turns(ptr %run) {{
entry:
  %state = load ptr, ptr %run
  %held = icmp eq ptr %state, null
  br i1 %held, label %calm, label %look
look:
  %raised = call i1 @look_for_signals(ptr %run)
  ret i1 %raised
calm:
  ret i1 false
}}

; Let Python handle signals if that is due; true, with the GIL held, if a handler raised.
define internal i1 @look_for_signals(ptr %run) {{
entry:
  %last_at = getelementptr i64, ptr %run, i64 1
  %last = load i64, ptr %last_at
  %now = call i64 @now()
  %time = sub i64 %now, %last
  %due = icmp sgt i64 %time, {interrupt}
  br i1 %due, label %look, label %calm
look:
  store i64 %now, ptr %last_at
  %state = load ptr, ptr %run
  call void @PyEval_RestoreThread(ptr %state)
  %status = call i32 @PyErr_CheckSignals()
  %raised = icmp ne i32 %status, 0
  br i1 %raised, label %stop, label %go_on
go_on:
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %run
  br label %calm
calm:
  ret i1 false
stop:
  ret i1 true
}}

; Fill the bases from the arguments and walk the table whose address is %self.
define internal i1 @run(ptr %table, ptr %arguments, i1 %release) {{
entry:
  %count = load i64, ptr %table
  %registers_at = getelementptr i64, ptr %table, i64 1
  %registers = load i64, ptr %registers_at
  %frame_at = getelementptr i64, ptr %table, i64 2
  %frame_size = load i64, ptr %frame_at
  %length_at = getelementptr i64, ptr %table, i64 3
  %length = load i64, ptr %length_at
  %records = getelementptr i64, ptr %table, i64 {table_header}
  %end = getelementptr i64, ptr %records, i64 %length
  %with_null = add i64 %count, 1
  %with_registers = add i64 %with_null, %registers
  %bases = alloca i64, i64 %with_registers, align 16
  %frame = alloca i64, i64 %frame_size, align 16
  %run = alloca [2 x i64], align 16
  store i64 0, ptr %bases
  br label %convert
convert:
  %i = phi i64 [ 0, %entry ], [ %i_next, %one ]
  %converted = icmp uge i64 %i, %count
  br i1 %converted, label %ready, label %one
one:
  %argument_at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument_at
  %pointer = call ptr @PyLong_AsVoidPtr(ptr %argument)
  %i_next = add i64 %i, 1
  %base_at = getelementptr ptr, ptr %bases, i64 %i_next
  store ptr %pointer, ptr %base_at
  br label %convert
ready:
  br i1 %release, label %leave, label %stay
stay:
  store ptr null, ptr %run
  %stay_raised = call i1 @walk(ptr %records, ptr %end, ptr %bases, ptr %frame, ptr %run)
  ret i1 %stay_raised
leave:
  %start = call i64 @now()
  %last_at = getelementptr i64, ptr %run, i64 1
  store i64 %start, ptr %last_at
  %state = call ptr @PyEval_SaveThread()
  store ptr %state, ptr %run
  %raised = call i1 @walk(ptr %records, ptr %end, ptr %bases, ptr %frame, ptr %run)
  br i1 %raised, label %failed, label %return
failed:
  ret i1 true
return:
  %last_state = load ptr, ptr %run
  call void @PyEval_RestoreThread(ptr %last_state)
  ret i1 false
}}

; METH_FASTCALL functions of Python: `self` is the table's address, the arguments are addresses.
define ptr @enter_light(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %raised = call i1 @run(ptr %table, ptr %arguments, i1 false)
  br i1 %raised, label %failed, label %good
failed:
  ret ptr null
good:
  %zero = call ptr @PyLong_FromLong(i64 0)
  ret ptr %zero
}}

define ptr @enter_heavy(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %raised = call i1 @run(ptr %table, ptr %arguments, i1 true)
  br i1 %raised, label %failed, label %good
failed:
  ret ptr null
good:
  %zero = call ptr @PyLong_FromLong(i64 0)
  ret ptr %zero
}}
"""


def text() -> str:
    """The walker and the entry points, to be put into one module with the pool.

    >>> "define ptr @enter_light(" in text()
    True
    """
    kinds = {
        "launch": LAUNCH,
        "copy": COPY,
        "loop": LOOP,
        "while": WHILE,
        "branch": BRANCH,
        "call": CALL,
    }
    return _TEXT.format(
        **kinds,
        table_header=TABLE_HEADER,
        launch_header=LAUNCH_HEADER,
        loop_header=LOOP_HEADER,
        while_header=WHILE_HEADER,
        branch_header=BRANCH_HEADER,
        call_header=CALL_HEADER,
        interrupt=INTERRUPT_NANOSECONDS,
    )

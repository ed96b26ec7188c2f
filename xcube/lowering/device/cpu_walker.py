"""The native walker as LLVM text: reads a program's table and runs its launches in order.

A *program* is a table of 64-bit cells. The walker finds the buffers of each launch and runs the
kernel on the calling thread or shares it with the pool (`cpu_runtime`). Control flow adds record
kinds whose bodies are ranges of records, so that the walker calls itself on them.

Table:  arguments | frame | length of records | records ...
Record: kind | length | ... ; a launch goes on with
        kernel | cubes | grain | buffers | (base, offset) of each buffer ... | scalars ...

*Bases* are the pointers of one run, in the order of the entry's arguments, after a null base that
turns an offset into an address (constants). The *frame* is room for the pointers of the launch with
the most buffers. A kernel is `void(ptr buffers, ptr scalars, i64 begin, i64 end)`.
"""

from __future__ import annotations

LAUNCH = 0
"""The record kind of a launch."""

TABLE_HEADER = 3
LAUNCH_HEADER = 6

INTERRUPT_NANOSECONDS = 500_000_000
"""How long a program runs at most, between launches, before it looks for signals."""

EXPORTS = ("enter_light", "enter_heavy")

CALLS = (
    "PyLong_AsVoidPtr",
    "PyLong_FromLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_CheckSignals",
)
"""What the text calls of Python; `@now` and `@share` it finds in the module it is put into."""

_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_CheckSignals()

; Run the records from %begin to %end; true if a signal handler raised, the GIL then being held.
; %run: thread state while the GIL is released or null, and when signals were last looked for.
define internal i1 @walk(ptr %begin, ptr %end, ptr %bases, ptr %frame, ptr %run) {{
entry:
  br label %next
next:
  %record = phi ptr [ %begin, %entry ], [ %after, %launched ], [ %after, %looked ]
  %over = icmp uge ptr %record, %end
  br i1 %over, label %finish, label %read
finish:
  ret i1 false
read:
  %length_at = getelementptr i64, ptr %record, i64 1
  %length = load i64, ptr %length_at
  %after = getelementptr i64, ptr %record, i64 %length
  %kind = load i64, ptr %record
  switch i64 %kind, label %unknown [ i64 {launch}, label %launch ]
unknown:
  unreachable
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
  br label %resolve
resolve:
  %i = phi i64 [ 0, %launch ], [ %i_next, %place ]
  %resolved = icmp uge i64 %i, %count
  br i1 %resolved, label %start, label %place
place:
  %ref = getelementptr [2 x i64], ptr %refs, i64 %i
  %base_index = load i64, ptr %ref
  %offset_at = getelementptr i64, ptr %ref, i64 1
  %offset = load i64, ptr %offset_at
  %base_at = getelementptr i64, ptr %bases, i64 %base_index
  %base = load i64, ptr %base_at
  %address = add i64 %base, %offset
  %slot = getelementptr i64, ptr %frame, i64 %i
  store i64 %address, ptr %slot
  %i_next = add i64 %i, 1
  br label %resolve
start:
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
  %frame_at = getelementptr i64, ptr %table, i64 1
  %frame_size = load i64, ptr %frame_at
  %length_at = getelementptr i64, ptr %table, i64 2
  %length = load i64, ptr %length_at
  %records = getelementptr i64, ptr %table, i64 {table_header}
  %end = getelementptr i64, ptr %records, i64 %length
  %with_null = add i64 %count, 1
  %bases = alloca i64, i64 %with_null, align 16
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
  %stay_status = call i1 @walk(ptr %records, ptr %end, ptr %bases, ptr %frame, ptr %run)
  ret i1 false
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
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %raised = call i1 @run(ptr %table, ptr %arguments, i1 false)
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
    return _TEXT.format(
        launch=LAUNCH,
        launch_header=LAUNCH_HEADER,
        table_header=TABLE_HEADER,
        interrupt=INTERRUPT_NANOSECONDS,
    )

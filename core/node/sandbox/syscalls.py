"""Which system calls a confined process may make, and their numbers.

From Linux's headers (`asm/unistd_64.h`, `asm-generic/unistd.h`, `asm/unistd-eabi.h`). A row is a
name and its number on x86-64, aarch64 and 32-bit ARM; a dash where the machine lacks the call.
"""

from __future__ import annotations

from collections.abc import Mapping

#: What a process needs that computes, reads files that landlock lets it read, and answers over
#: pipes that are open already. All other calls are refused; so are those that landlock does not
#: cover and that would reach beyond the process: chmod, chown, kill, utime, every kind of socket.
_COMPUTE = """
read 0 63 3
write 1 64 4
readv 19 65 145
writev 20 66 146
pread64 17 67 180
pwrite64 18 68 181
lseek 8 62 19
_llseek - - 140
close 3 57 6
close_range 436 436 436
dup 32 23 41
dup2 33 - 63
dup3 292 24 358
pipe 22 - 42
pipe2 293 59 359
open 2 - 5
openat 257 56 322
access 21 - 33
faccessat 269 48 334
faccessat2 439 439 439
stat 4 - 106
lstat 6 - 107
fstat 5 80 108
newfstatat 262 79 -
stat64 - - 195
lstat64 - - 196
fstat64 - - 197
fstatat64 - - 327
statx 332 291 397
readlink 89 - 85
readlinkat 267 78 332
getdents64 217 61 217
getcwd 79 17 183
mmap 9 222 -
mmap2 - - 192
munmap 11 215 91
mprotect 10 226 125
mremap 25 216 163
madvise 28 233 220
brk 12 214 45
msync 26 227 144
mincore 27 232 219
rt_sigaction 13 134 174
rt_sigprocmask 14 135 175
rt_sigreturn 15 139 173
sigreturn - - 119
sigaltstack 131 132 186
rt_sigpending 127 136 176
futex 202 98 240
futex_time64 - 422 422
set_robust_list 273 99 338
get_robust_list 274 100 339
rseq 334 293 398
sched_yield 24 124 158
sched_getaffinity 204 123 242
nanosleep 35 101 162
clock_nanosleep 230 115 265
clock_nanosleep_time64 - 407 407
clock_gettime 228 113 263
clock_gettime64 - 403 403
clock_getres 229 114 264
clock_getres_time64 - 406 406
gettimeofday 96 169 78
time 201 - -
times 100 153 43
getpid 39 172 20
gettid 186 178 224
getppid 110 173 64
getuid 102 174 24
geteuid 107 175 49
getgid 104 176 47
getegid 108 177 50
getuid32 - - 199
geteuid32 - - 201
getgid32 - - 200
getegid32 - - 202
uname 63 160 122
sysinfo 99 179 116
getrandom 318 278 384
getrusage 98 165 77
getrlimit 97 163 -
ugetrlimit - - 191
setrlimit 160 164 75
poll 7 - 168
ppoll 271 73 336
ppoll_time64 - 414 414
select 23 - -
_newselect - - 142
pselect6 270 72 335
pselect6_time64 - 413 413
restart_syscall 219 128 0
exit 60 93 1
exit_group 231 94 248
arm_fadvise64_64 - - 270
fadvise64 221 223 -
"""

#: Calls that are allowed for some arguments only; see `seccomp`.
_CHECKED = """
fcntl 72 25 55
fcntl64 - - 221
ioctl 16 29 54
tgkill 234 131 268
prlimit64 302 261 369
"""

#: Calls that fail as if the kernel lacked them: the C library then uses another one, which is
#: refused with an error that programs expect.
_ABSENT = """
clone3 435 435 435
"""

#: What a process that starts a compiler has no use for. All other calls are allowed.
_NOT_COMPILING = """
socket 41 198 281
socketpair 53 199 288
connect 42 203 283
bind 49 200 282
listen 50 201 284
accept 43 202 285
accept4 288 242 366
sendmsg 46 211 296
sendmmsg 307 269 374
recvmsg 47 212 297
ptrace 101 117 26
process_vm_readv 310 270 376
process_vm_writev 311 271 377
process_madvise 440 440 440
pidfd_open 434 434 434
pidfd_getfd 438 438 438
pidfd_send_signal 424 424 424
kcmp 312 272 378
io_uring_setup 425 425 425
io_uring_enter 426 426 426
io_uring_register 427 427 427
bpf 321 280 386
perf_event_open 298 241 364
userfaultfd 323 282 388
keyctl 250 219 311
add_key 248 217 309
request_key 249 218 310
mount 165 40 21
umount2 166 39 52
pivot_root 155 41 218
chroot 161 51 61
unshare 272 97 337
setns 308 268 375
move_mount 429 429 429
open_tree 428 428 428
fsopen 430 430 430
fsconfig 431 431 431
fsmount 432 432 432
fspick 433 433 433
mount_setattr 442 442 442
open_by_handle_at 304 265 371
name_to_handle_at 303 264 370
init_module 175 105 128
finit_module 313 273 379
delete_module 176 106 129
kexec_load 246 104 347
kexec_file_load 320 294 401
reboot 169 142 88
swapon 167 224 87
swapoff 168 225 115
acct 163 89 51
quotactl 179 60 131
syslog 103 116 103
chmod 90 - 15
fchmod 91 52 94
fchmodat 268 53 333
fchmodat2 452 452 452
chown 92 - 182
fchown 93 55 95
lchown 94 - 16
fchownat 260 54 325
chown32 - - 212
fchown32 - - 207
lchown32 - - 198
setxattr 188 5 226
lsetxattr 189 6 227
fsetxattr 190 7 228
removexattr 197 14 235
lremovexattr 198 15 236
fremovexattr 199 16 237
settimeofday 164 170 79
clock_settime 227 112 262
clock_adjtime 305 266 372
adjtimex 159 171 124
sethostname 170 161 74
setdomainname 171 162 121
mknod 133 - 14
mknodat 259 33 324
shmget 29 194 307
shmat 30 196 305
msgget 68 186 303
semget 64 190 299
mq_open 240 180 274
"""

#: machine, as `platform.machine` has it: its column above, and its AUDIT_ARCH_* (linux/audit.h).
MACHINES: Mapping[str, tuple[int, int]] = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
    "armv7l": (2, 0x40000028),
    "armv8l": (2, 0x40000028),
}


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = MACHINES[machine][0]
    rows = (line.split() for line in table.split("\n") if line)
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column] != "-"}


def compute(machine: str) -> dict[str, int]:
    """The calls of a process that runs programs, by name."""
    return _numbers(_COMPUTE, machine)


def checked(machine: str) -> dict[str, int]:
    """The calls whose arguments are looked at."""
    return _numbers(_CHECKED, machine)


def absent(machine: str) -> dict[str, int]:
    """The calls that the kernel seems not to have."""
    return _numbers(_ABSENT, machine)


def not_serving(machine: str) -> dict[str, int]:
    """The calls that are refused to a server that compiles and runs programs.

    As while a compiler may be started, but connections to the sockets that it has are accepted.
    """
    refused = not_compiling(machine)
    return {name: refused[name] for name in refused if name not in ("accept", "accept4")}


def not_compiling(machine: str) -> dict[str, int]:
    """The calls that are refused while a compiler may be started."""
    return _numbers(_NOT_COMPILING, machine)

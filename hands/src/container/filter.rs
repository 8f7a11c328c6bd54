//! Which system calls a container may make, as a profile for the daemon: what the sandbox may, but for terminals,
//! of which a container has none of this machine's.
//!
//! A profile takes the place of the daemon's own, so it says all. What it does not name is refused. Names that a
//! kernel or the daemon does not know are passed over, so they are those of all kinds of machine.

use serde_json::{Value, json};

use crate::sandbox::seccomp;

/// System calls that are allowed unless a table of [`seccomp`] says otherwise.
const KNOWN: &str = "
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep clone close close_range connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit
    exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
    fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex
    futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd
    getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid
    getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday
    getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
    io_pgetevents io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
    landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr llistxattr lremovexattr lseek
    lsetxattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr lstat madvise map_shadow_stack membarrier
    memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd
    msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat pause personality
    pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
    preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2
    read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat
    renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
    setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt
    setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat
    statfs statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times
    tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
";
/// The same for those that 32-bit programs alone make.
const KNOWN_32: &str = "
    _llseek _newselect arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush chown32 clock_getres_time64
    clock_gettime64 clock_nanosleep_time64 fadvise64_64 fchown32 fcntl64 fstat64 fstatat64 fstatfs64 ftruncate64
    futex_time64 getegid32 geteuid32 getgid32 getgroups32 getresgid32 getresuid32 getuid32 io_pgetevents_time64 ipc
    lchown32 lstat64 mmap2 mq_timedreceive_time64 mq_timedsend_time64 nice ppoll_time64 pselect6_time64 recv
    recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64 semtimedop_time64 send sendfile64 set_tls
    setfsgid32 setfsuid32 setgid32 setgroups32 setregid32 setresgid32 setresuid32 setreuid32 setuid32 sigaction
    signal sigpending sigprocmask sigreturn sigsuspend socketcall stat64 statfs64 sync_file_range2 timer_gettime64
    timer_settime64 timerfd_gettime64 timerfd_settime64 truncate64 ugetrlimit utimensat_time64 waitpid
";

/// The option of a container by which the daemon takes the profile.
pub(super) fn option() -> String {
    format!("seccomp={}", profile())
}

fn profile() -> Value {
    let mut rules = vec![
        json!({"names": unconditional(), "action": "SCMP_ACT_ALLOW"}),
        json!({"names": names(seccomp::UNKNOWN), "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS}),
        allowed(
            "clone",
            &none_of(
                0,
                seccomp::NAMESPACES.iter().fold(0, |all, flag| all | u64::from(flag.cast_unsigned())),
            ),
        ),
    ];
    for family in seccomp::FAMILIES {
        for name in ["socket", "socketpair"] {
            rules.push(allowed(name, &equal(0, u64::from(family.cast_unsigned()))));
        }
    }
    rules.extend(seccomp::PERSONALITIES.map(|domain| allowed("personality", &equal(0, domain))));
    let set_id = seccomp::SET_ID.iter().fold(0, |all, bit| all | u64::from(*bit));
    rules.extend(seccomp::MODES.map(|(name, _, mode)| allowed(name, &none_of(mode, set_id))));
    let making = seccomp::MAKING.iter().fold(0, |all, flag| all | u64::from(flag.cast_unsigned()));
    for (name, _, flags) in seccomp::OPENINGS {
        rules.push(allowed(name, &none_of(flags, making)));
        rules.push(allowed(name, &none_of(flags + 1, set_id)));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        // The daemon's machine may be of another kind than ours.
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        ],
        "syscalls": rules,
    })
}

/// Names of [`KNOWN`] and [`KNOWN_32`] that no table of [`seccomp`] has.
fn unconditional() -> Vec<&'static str> {
    let conditional = ["clone", "personality", "socket", "socketpair"];
    let elsewhere: Vec<&str> = [seccomp::DENIED, seccomp::UNKNOWN]
        .into_iter()
        .flat_map(names)
        .chain(seccomp::MODES.map(|(name, ..)| name))
        .chain(seccomp::OPENINGS.map(|(name, ..)| name))
        .chain(conditional)
        .collect();
    KNOWN
        .split_whitespace()
        .chain(KNOWN_32.split_whitespace())
        .filter(|name| !elsewhere.contains(name))
        .collect()
}

fn names(table: &[(&'static str, libc::c_long)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| name.trim_start_matches("SYS_")).collect()
}

/// A rule by which a call is allowed when its arguments are so. Of several for one name, any suffices.
fn allowed(name: &str, argument: &Value) -> Value {
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]})
}

/// An argument that has none of these bits.
fn none_of(at: u8, bits: u64) -> Value {
    json!({"index": at, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"})
}

/// An argument that is this.
fn equal(at: u8, value: u64) -> Value {
    json!({"index": at, "value": value, "op": "SCMP_CMP_EQ"})
}

//! Which system calls the sandbox may make: what Docker's default profile allows to a container without
//! capabilities, less namespaces, keys, BPF, `io_uring`, input stuffing in every form, and files that run as
//! their owner or group.
//!
//! Two filters in a row. The first answers `ENOSYS` to what is not known here, and to [`UNKNOWN`], so that
//! programs fall back. The second answers `EPERM` to what is known and denied. The container hand makes its
//! profile of the same tables.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

macro_rules! syscalls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// The number of a call that only older kinds of machine have.
macro_rules! old {
    ($name:ident) => {{
        #[cfg(target_arch = "x86_64")]
        const NUMBER: Option<c_long> = Some(libc::$name);
        #[cfg(not(target_arch = "x86_64"))]
        const NUMBER: Option<c_long> = None;
        NUMBER
    }};
}

/// System calls that are known here, up to Linux 6.10: the old block and the block shared by all machines.
#[cfg(target_arch = "x86_64")]
const KNOWN: [RangeInclusive<c_long>; 2] = [0..=334, 424..=462];
#[cfg(target_arch = "aarch64")]
const KNOWN: [RangeInclusive<c_long>; 2] = [0..=291, 424..=462];

/// System calls that are answered as if there were none of the name: the arguments of the first two that matter
/// are behind a pointer, and libraries fall back to `clone` and `openat`. The third would take from a store that
/// the whole machine shares (`fs.aio-max-nr`), and databases fall back to threads.
pub const UNKNOWN: &[(&str, c_long)] = syscalls! { SYS_clone3 SYS_openat2 SYS_io_setup };

/// `clone` flags that make namespaces: mount, cgroup, UTS, IPC, user, PID, network, time.
pub(crate) const NAMESPACES: [c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    0x80, // CLONE_NEWTIME
];
/// Execution domains that Docker lets a program choose; the last asks for the present one.
pub(crate) const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Address families with a use in here. Docker denies VSOCK; the others have been doors to the kernel.
pub(crate) const FAMILIES: [c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Terminal requests that type for somebody else.
const STUFFING: [u64; 2] = [0x5412, 0x541c]; // TIOCSTI, TIOCLINUX

/// Bits of a mode by which a program runs as its file's owner or group.
pub(crate) const SET_ID: [libc::mode_t; 2] = [libc::S_ISUID, libc::S_ISGID];
/// Flags by which an opening makes a file; without them its mode means nothing, and may be anything. The second
/// is that part of `O_TMPFILE` which is no other flag.
pub(crate) const MAKING: [c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];
/// `fchmodat2`, which has this number on every machine.
const FCHMODAT2: c_long = 452;

/// System calls that give a file a mode: the number, where this kind of machine has it, and the place of the mode
/// among the arguments. Those that make folders are not among them: the kernel leaves these bits out of their modes.
pub const MODES: [(&str, Option<c_long>, u8); 7] = [
    ("chmod", old!(SYS_chmod), 1),
    ("creat", old!(SYS_creat), 1),
    ("fchmod", Some(libc::SYS_fchmod), 1),
    ("fchmodat", Some(libc::SYS_fchmodat), 2),
    ("fchmodat2", Some(FCHMODAT2), 2),
    ("mknod", old!(SYS_mknod), 1),
    ("mknodat", Some(libc::SYS_mknodat), 2),
];
/// System calls that open a file: the number, where this kind of machine has it, and the place of the flags among the
/// arguments. The mode is the next one.
pub const OPENINGS: [(&str, Option<c_long>, u8); 2] =
    [("open", old!(SYS_open), 1), ("openat", Some(libc::SYS_openat), 2)];

/// System calls that are denied whatever their arguments, by name and number.
pub const DENIED: &[(&str, c_long)] = syscalls! {
    SYS_acct SYS_add_key SYS_bpf SYS_chroot SYS_clock_adjtime SYS_clock_settime SYS_delete_module
    SYS_fanotify_init SYS_fanotify_mark SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick
    SYS_get_mempolicy SYS_init_module SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_kcmp
    SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_lookup_dcookie SYS_mbind SYS_migrate_pages SYS_mount
    SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree
    SYS_perf_event_open SYS_pidfd_getfd SYS_pivot_root SYS_process_madvise SYS_quotactl SYS_quotactl_fd
    SYS_reboot SYS_request_key SYS_set_mempolicy SYS_set_mempolicy_home_node SYS_setdomainname
    SYS_sethostname SYS_setns SYS_settimeofday SYS_swapoff SYS_swapon SYS_syslog SYS_umount2 SYS_unshare
    SYS_userfaultfd SYS_vhangup
};

/// The same for calls that only this kind of machine has.
#[cfg(target_arch = "x86_64")]
pub const DENIED_HERE: &[(&str, c_long)] = syscalls! {
    SYS_afs_syscall SYS_epoll_ctl_old SYS_epoll_wait_old SYS_getpmsg
    SYS_ioperm SYS_iopl SYS_putpmsg SYS_security SYS_sysfs SYS__sysctl SYS_tuxcall
    SYS_uselib SYS_ustat SYS_vserver
};
/// The same for calls that only this kind of machine has.
#[cfg(target_arch = "aarch64")]
pub const DENIED_HERE: &[(&str, c_long)] = &[];

/// The two programs, as `bwrap` wants them: instructions in the machine's own layout.
pub(super) fn programs() -> Result<[Vec<u8>; 2], BackendError> {
    Ok([bytes(&known()?), bytes(&denied()?)])
}

/// Anything that is not known: `ENOSYS`.
fn known() -> Result<BpfProgram, BackendError> {
    let unknown = |number: &c_long| UNKNOWN.iter().any(|(_, unknown)| unknown == number);
    let rules = KNOWN.into_iter().flatten().filter(|number| !unknown(number));
    compile(
        rules.map(|number| (number, Vec::new())).collect(),
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        SeccompAction::Allow,
    )
}

/// What is known and denied: `EPERM`.
fn denied() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        DENIED.iter().chain(DENIED_HERE).map(|(_, number)| (*number, Vec::new())).collect();
    let any_namespace = NAMESPACES.map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        SeccompRule::new(vec![argument(0, SeccompCmpOp::MaskedEq(flag), flag)?])
    });
    rules.insert(libc::SYS_clone, any_namespace.into_iter().collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_personality, vec![none_of(0, PERSONALITIES)?]);
    let families = FAMILIES.map(|family| u64::from(family.cast_unsigned()));
    rules.insert(libc::SYS_socket, vec![none_of(0, families)?]);
    rules.insert(libc::SYS_socketpair, vec![none_of(0, families)?]);
    let stuffing = STUFFING.map(|request| SeccompRule::new(vec![argument(1, SeccompCmpOp::Eq, request)?]));
    rules.insert(libc::SYS_ioctl, stuffing.into_iter().collect::<Result<_, _>>()?);
    rules.extend(modes()?);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM.cast_unsigned()))
}

/// Modes with a bit of [`SET_ID`], wherever they make or change a file.
fn modes() -> Result<Vec<(c_long, Vec<SeccompRule>)>, BackendError> {
    let has = |at: u8, bit: u32| argument(at, SeccompCmpOp::MaskedEq(bit.into()), bit.into());
    let mut rules = Vec::new();
    for (_, number, mode) in MODES {
        let Some(number) = number else { continue };
        let any = SET_ID.map(|bit| SeccompRule::new(vec![has(mode, bit)?]));
        rules.push((number, any.into_iter().collect::<Result<_, _>>()?));
    }
    for (_, number, flags) in OPENINGS {
        let Some(number) = number else { continue };
        let any = MAKING.into_iter().flat_map(|making| {
            let making = making.cast_unsigned();
            SET_ID.map(|bit| SeccompRule::new(vec![has(flags, making)?, has(flags + 1, bit)?]))
        });
        rules.push((number, any.collect::<Result<_, _>>()?));
    }
    Ok(rules)
}

/// All of these arguments are 32 bits wide in the kernel: the upper half must not count.
fn argument(at: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(at, SeccompCmpArgLen::Dword, op, value)
}

fn none_of<const N: usize>(at: u8, values: [u64; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(
        values.into_iter().map(|value| argument(at, SeccompCmpOp::Ne, value)).collect::<Result<_, _>>()?,
    )
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matched, machine)?.try_into()
}

fn bytes(program: &BpfProgram) -> Vec<u8> {
    program
        .iter()
        .flat_map(|line| {
            let [code0, code1] = line.code.to_ne_bytes();
            let [k0, k1, k2, k3] = line.k.to_ne_bytes();
            [code0, code1, line.jt, line.jf, k0, k1, k2, k3]
        })
        .collect()
}

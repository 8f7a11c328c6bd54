//! Which system calls the sandbox may make: what Docker's default profile allows to a container without
//! capabilities, less namespaces, keys, BPF, io_uring and input stuffing in every form.
//!
//! Two filters in a row. The first answers `ENOSYS` to what is not known here, so that newer programs
//! fall back (`clone3` among them: its flags are behind a pointer, and libraries fall back to `clone`).
//! The second answers `EPERM` to what is known and denied.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// System calls that are known here, up to Linux 6.10: the old block and the block shared by all machines.
#[cfg(target_arch = "x86_64")]
const KNOWN: [RangeInclusive<c_long>; 2] = [0..=334, 424..=462];
#[cfg(target_arch = "aarch64")]
const KNOWN: [RangeInclusive<c_long>; 2] = [0..=291, 424..=462];

/// `clone` flags that make namespaces: mount, cgroup, UTS, IPC, user, PID, network, time.
const NAMESPACES: [c_int; 8] = [
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
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Address families with a use in here. Docker denies VSOCK; the others have been doors to the kernel.
const FAMILIES: [c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Terminal requests that type for somebody else.
const STUFFING: [u64; 2] = [0x5412, 0x541c]; // TIOCSTI, TIOCLINUX

macro_rules! syscalls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

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
    let rules = KNOWN.into_iter().flatten().filter(|number| *number != libc::SYS_clone3);
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
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM.cast_unsigned()))
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

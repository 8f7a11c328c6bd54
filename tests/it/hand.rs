//! The contract of every kind of hand: what the gateway may rely on, whatever executes.
//!
//! `every` holds what all kinds promise, `posix` what kinds with the six tools promise beyond that. A kind takes part
//! by a [`rig::Rig`] in a file of its own, which ends in `contract!(every, ItsRig);` and, where it has them,
//! `contract!(posix, ItsRig);`: one test for each promise, with a rig of its own.

/// One test for each promise of a suite, named after it, in the module that says it.
macro_rules! contract {
    (every, $rig:ty) => {
        tests_of! { $rig, every:
            listing_tools_provisions_nothing,
            an_instance_is_made_once_however_many_ask_for_it,
            a_call_succeeds_fails_or_is_refused,
            a_cancelled_call_ends_and_its_instance_goes_on,
            an_instance_killed_during_a_call_is_lost_and_the_next_has_the_same_work,
            an_instance_killed_between_calls_is_noticed_and_replaced,
            release_leaves_nothing_and_is_idempotent,
            a_provision_that_nobody_waits_for_leaves_nothing_once_reaped,
            reaping_ends_what_a_dead_gateway_left_and_nothing_else,
            a_checkpoint_brings_back_what_was,
            a_checkpoint_brings_back_folders_that_may_not_be_written_to,
            work_that_lies_elsewhere_can_be_removed,
        }
    };
    (posix, $rig:ty) => {
        tests_of! { $rig, posix:
            nothing_but_files_survives_a_call,
            output_streams_while_a_call_runs,
            a_cancelled_call_takes_everything_with_it_and_nothing_else,
            a_call_that_is_cancelled_late_loses_nothing_in_silence,
            quick_calls_say_all_and_end_as_asked,
            a_call_that_takes_too_long_ends_even_if_it_ignores_every_signal,
            background_processes_live_until_release,
            a_wrong_argument_is_answered_with_what_is_right,
            files_are_written_edited_read_and_found,
            calls_run_side_by_side,
            a_flood_is_cut_and_said,
            files_go_in_and_out_byte_for_byte,
            folders_that_may_not_be_written_to_are_copied,
            a_copy_that_breaks_off_fails_and_leaves_nothing,
        }
    };
}

/// A test that calls each of these with a fresh rig.
macro_rules! tests_of {
    ($rig:ty, $suite:ident: $($promise:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::hand::$suite::$promise(<$rig as $crate::hand::rig::Rig>::new().await).await;
            }
        )*
    };
}

mod android;
pub(crate) mod container;
mod container_copies;
mod container_faults;
mod container_limits;
mod container_restores;
mod container_tls;
mod deleted;
pub(crate) mod emulator;
mod every;
mod host;
pub(crate) mod marked;
mod posix;
mod registry;
pub(crate) mod rig;
mod sandbox;
mod ssh;
mod steps;
mod vm;

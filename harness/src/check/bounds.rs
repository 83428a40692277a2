//! Every time bound and threshold the rules use, in one table, each with where it comes from.

use crate::history::Micros;

const SECOND: u64 = 1_000_000;

const fn seconds(seconds: u64) -> Micros {
    Micros(seconds * SECOND)
}

/// The bounds. `Bounds::default()` is the table; the fields exist so that tests can show what each bound is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How old the picture may be that a server's informers have of IPAddresses and ServiceCIDRs. Source: ours; upstream
    /// has no bound. Its own test flaked because a deletion had not reached the informer (k/k issue 135963).
    pub informer_lag: Micros,
    /// How late the recorder's watch may deliver a write that was done before a call returned. Source: ours.
    pub recorder_lag: Micros,
    /// How long after a Service is gone its addresses may still be released. Source: the release is one etcd write per
    /// lock right after the deletion; the request time-out of kube-apiserver is 60 s.
    pub release: Micros,
    /// How long a call that was refused or timed out may still have an effect, and how long a deleted Service waits for
    /// the record of its creation. Source: request time-out 60 s of kube-apiserver, doubled, and slack.
    pub late_effect: Micros,
    /// E1, a missing IPAddress: one informer resync of `RepairIPAddress` (3 min), 15 retries that double from 5 ms
    /// (164 s), and slack.
    pub missing_ip_address: Micros,
    /// E2, a missing bit while a bitmap server lives: `repairLoopInterval` (3 min) and slack.
    pub missing_bit: Micros,
    /// E3, an IPAddress without its Service: nothing wakes `RepairIPAddress` when a Service goes (`syncService` ends at
    /// "not found"), so that the IPAddress is looked at again only at the resync of its informer (3 min), and if it is
    /// not 60 s old then, once more when it is; and slack. Seen: 235 s.
    pub orphan_ip_address: Micros,
    /// E3, a leaked bit: seen by up to four passes of 3 min, because `numRepairsBeforeLeakCleanup` = 3 passes must see
    /// it after the one that it just missed; and slack.
    pub leaked_bit: Micros,
    /// E4, a duplicate without an Event: one resync or one pass (3 min), and slack.
    pub unreported_duplicate: Micros,
    /// E5, start to ready: the post-start hook of the repair controllers gives up after 60 s, and slack for the process
    /// start.
    pub start: Micros,
    /// S10: how often the same key may go back to the value it had before the last write, in one quiet phase.
    pub rewrites: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            informer_lag: seconds(5),
            recorder_lag: seconds(5),
            release: seconds(60),
            late_effect: seconds(150),
            missing_ip_address: seconds(180 + 164 + 30),
            missing_bit: seconds(180 + 30),
            orphan_ip_address: seconds(180 + 60 + 30),
            leaked_bit: seconds(3 * 180 + 60),
            unreported_duplicate: seconds(180 + 30),
            start: seconds(60 + 15),
            rewrites: 3,
        }
    }
}

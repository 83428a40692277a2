//! Recordings that do not begin with an empty cluster, or do not have the bitmaps.

use super::corpus::{A, B, Recording};
use super::{CaseContext, Judgement, Rule, judge};
use crate::gates::AllocatorMode::{Bitmap, DualWrite, IpAddress};

#[track_caller]
fn is(context: &CaseContext, recording: Recording, broken: &[Rule]) {
    let verdict = judge(context, recording.end());
    assert_ne!(verdict.judgement, Judgement::Inconclusive, "{:?}", verdict.assumptions);
    assert_eq!(verdict.rules(), broken, "{:?}", verdict.violations);
}

fn without_bitmaps() -> CaseContext {
    CaseContext { bitmaps_recorded: false, ..CaseContext::default() }
}

#[test]
fn a_duplicate_that_was_there_before_is_not_of_the_case_and_a_third_owner_is() {
    let found = Recording::of(&[IpAddress]).object("10.0.0.9", "a").service("a", "10.0.0.9").service("b", "10.0.0.9");
    let context = CaseContext { found_until: found.revision, ..CaseContext::default() };
    let with_third = |it: Recording| it.service("c", "10.0.0.9");
    is(&context, with_third(found), &[Rule::S1]);
    let found = Recording::of(&[IpAddress]).object("10.0.0.9", "a").service("a", "10.0.0.9").service("b", "10.0.0.9");
    is(&context, found, &[]);
    let found = Recording::of(&[IpAddress]).object("10.0.0.9", "a").service("a", "10.0.0.9").service("b", "10.0.0.9");
    is(&CaseContext::default(), found, &[Rule::S1]);
}

#[test]
fn a_service_found_before_the_case_loses_its_lock_during_it_by_somebody_s_doing() {
    let found = Recording::of(&[IpAddress]).object("10.0.0.9", "a").service("a", "10.0.0.9");
    let context = CaseContext { found_until: found.revision, ..CaseContext::default() };
    is(&context, found.no_object("10.0.0.9"), &[Rule::S7]);
}

#[test]
fn without_bitmaps_dual_write_is_judged_by_its_ip_addresses_alone() {
    let with_object = || {
        let it = Recording::of(&[DualWrite]).object("10.0.0.9", "a").service("a", "10.0.0.9");
        it.ok(A, "a", &["10.0.0.9"], "10.0.0.9")
    };
    is(&without_bitmaps(), with_object(), &[]);
    let without_object = Recording::of(&[DualWrite]).service("a", "10.0.0.9").ok(A, "a", &["10.0.0.9"], "10.0.0.9");
    is(&without_bitmaps(), without_object, &[Rule::S9]);
}

#[test]
fn without_bitmaps_nobody_says_where_a_bitmap_server_had_room_or_must_set_a_bit() {
    let lower_band =
        |mode| Recording::of(&[mode]).object("10.0.0.9", "a").service("a", "10.0.0.9").ok(A, "a", &[], "10.0.0.9");
    is(&without_bitmaps(), lower_band(Bitmap).wait(400), &[]);
    is(&without_bitmaps(), lower_band(IpAddress), &[Rule::S3]);
    let refused = |mode| Recording::of(&[mode]).refused(A, "a", &[], "failed to allocate a serviceIP: range is full");
    is(&without_bitmaps(), refused(Bitmap), &[]);
    is(&without_bitmaps(), refused(IpAddress), &[Rule::E6]);
}

#[test]
fn a_duplicate_is_found_without_bitmaps_and_the_verdict_says_what_was_not_judged() {
    let recording = Recording::of(&[Bitmap, IpAddress])
        .service("a", "10.0.0.9")
        .ok(A, "a", &["10.0.0.9"], "10.0.0.9")
        .create(B, IpAddress, "b", "10.0.0.9");
    let verdict = judge(&without_bitmaps(), recording.end());
    assert_eq!(verdict.rules(), [Rule::S1]);
    assert_eq!(verdict.not_judged.len(), super::NOT_JUDGED_WITHOUT_BITMAPS.len());
}

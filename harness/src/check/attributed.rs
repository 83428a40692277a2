//! Histories with a real fault that a kind judge would excuse by a hazard that is only possible, beside the histories of the
//! hazards themselves: what explains a violation, and what does not.

use super::corpus::{A, B, Recording};
use super::{CaseContext, Judgement, Rule, Verdict, judge};
use crate::gates::AllocatorMode::{Bitmap, DualWrite, IpAddress};
use crate::hazard::Hazard;
use crate::history::{ServerId, ServiceType, TopologyEvent};
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use std::collections::BTreeSet;

const TAKEN: &str = "Internal error occurred: failed to allocate a serviceIP: provided IP is already allocated";
const FULL: &str = "Internal error occurred: failed to allocate a serviceIP: range is full";
const MISMATCH: &str = "failed to allocate a serviceIP: the provided network does not match the current range";

fn judged(recording: Recording) -> Verdict {
    let verdict = judge(&CaseContext::default(), recording.end());
    assert_ne!(verdict.judgement, Judgement::Inconclusive, "{:?}", verdict.assumptions);
    verdict
}

/// Every violation of the rule has these causes; none for an unexplained one.
#[track_caller]
fn is(recording: Recording, rule: Rule, causes: &[Hazard]) {
    let verdict = judged(recording);
    let found: Vec<BTreeSet<Hazard>> = verdict.of(rule).map(|violation| violation.causes.clone()).collect();
    assert!(!found.is_empty(), "{rule} is not broken: {:?}", verdict.violations);
    let expected: BTreeSet<Hazard> = causes.iter().copied().collect();
    assert!(found.iter().all(|causes| *causes == expected), "{:#?}", verdict.violations);
}

/// What is left at the end, by hazard.
#[track_caller]
fn leaves(recording: Recording, hazards: &[Option<Hazard>]) {
    let verdict = judged(recording.event(TopologyEvent::Teardown));
    assert_eq!(verdict.left.iter().map(|left| left.hazard()).collect::<Vec<_>>(), hazards, "{:?}", verdict.left);
}

fn stop(it: Recording, server: ServerId) -> Recording {
    it.event(TopologyEvent::Stopping { server })
}

#[test]
fn fifty_ip_addresses_deleted_under_live_services_are_nobodys_crash() {
    let services = (1..=16).map(|last| format!("10.0.0.{last}"));
    let services: Vec<String> = services.collect();
    let made = services.iter().enumerate().fold(Recording::of(&[IpAddress, IpAddress]), |it, (index, ip)| {
        it.create(A, IpAddress, &format!("s-{index}"), ip)
    });
    let killed = made.killed(B).wait(90);
    is(services.iter().fold(killed, |it, ip| it.no_object(ip)), Rule::S7, &[]);
}

#[test]
fn a_lock_released_before_the_service_is_stored_is_the_crash_of_that_change_only() {
    let made = || Recording::of(&[IpAddress]).create(A, IpAddress, "a", "10.0.0.9").wait(90);
    let cut_off = |name: &'static str| stop(made(), A).no_object("10.0.0.9").change_cut_off(A, name).killed(A);
    is(cut_off("a"), Rule::S7, &[Hazard::ReleasedBeforeStored]);
    is(cut_off("b"), Rule::S7, &[]);
}

#[test]
fn a_duplicate_is_explained_by_the_servers_that_took_the_address() {
    let pair = || Recording::of(&[Bitmap, IpAddress]);
    let blind = pair().create(A, Bitmap, "a", "10.0.0.9").create(B, IpAddress, "b", "10.0.0.9");
    is(blind, Rule::S1, &[Hazard::NoSharedLock]);
    let same = pair().create(A, Bitmap, "a", "10.0.0.9").create(A, Bitmap, "b", "10.0.0.9");
    is(same, Rule::S1, &[]);
    // Created by the other one, but the address was taken by a change of type through this one.
    let changed = pair()
        .create(A, Bitmap, "a", "10.0.0.9")
        .service_with("b", "uid-b", ServiceType::ExternalName, &[], false)
        .granted_nothing(B, "b")
        .service_with("b", "uid-b", ServiceType::ClusterIp, &["10.0.0.9"], false)
        .type_changed_to_cluster_ip(A, "b", "10.0.0.9");
    is(changed, Rule::S1, &[]);
}

#[test]
fn a_third_owner_is_explained_only_while_the_ip_address_of_the_duplicate_is_absent() {
    let blind =
        || Recording::of(&[Bitmap, IpAddress]).create(A, Bitmap, "a", "10.0.0.9").create(B, IpAddress, "b", "10.0.0.9");
    let all = |it: Recording| judged(it).of(Rule::S1).map(|it| it.causes.clone()).collect::<Vec<_>>();
    let third = |it: Recording| it.service("c", "10.0.0.9").ok(B, "c", &["10.0.0.9"], "10.0.0.9");
    let explained = all(third(blind().no_object("10.0.0.9").object("10.0.0.9", "c")));
    assert!(explained.iter().all(|causes| causes.contains(&Hazard::NoSharedLock)), "{explained:?}");
    let passed_on = all(third(blind().object("10.0.0.9", "c")));
    assert!(passed_on.iter().any(BTreeSet::is_empty), "{passed_on:?}");
}

#[test]
fn a_dual_write_server_that_ignores_a_bitmap_with_room_is_no_fallback() {
    let it = Recording::of(&[Bitmap, DualWrite]).create(A, Bitmap, "a", "10.0.0.20");
    is(it.object("10.0.0.20", "b").service("b", "10.0.0.20").ok(B, "b", &[], "10.0.0.20"), Rule::S1, &[]);
}

#[test]
fn a_refusal_has_the_causes_that_the_recording_shows_around_it() {
    let three = || Recording::of(&[DualWrite, IpAddress, Bitmap]);
    let live = |it: Recording| it.create(B, IpAddress, "b", "10.0.0.20");
    let orphan = |it: Recording| {
        let it = it.create(A, DualWrite, "o", "10.0.0.21").no_service_through(ServerId(2), "o");
        it.clear("10.0.0.21").wait(20)
    };
    is(live(three()).refused(A, "x", &[], TAKEN), Rule::E6, &[Hazard::StaleBitmapAfterDowngrade]);
    is(orphan(three()).refused(A, "x", &[], TAKEN), Rule::E6, &[Hazard::OrphanIpAddress]);
    let both = live(orphan(three())).refused(A, "x", &[], TAKEN);
    is(both, Rule::E6, &[Hazard::OrphanIpAddress, Hazard::StaleBitmapAfterDowngrade]);
    is(three().refused(A, "x", &[], TAKEN), Rule::E6, &[]);
    is(three().refused(A, "x", &[], MISMATCH), Rule::E6, &[]);
}

#[test]
fn an_address_that_stays_refused_is_explained_by_the_lock_that_was_left_and_by_who_left_it() {
    let ask = |it: Recording| it.wait(20).refused_static(A, "x", "10.0.0.9");
    let made = |modes: &[_]| Recording::of(modes).create(A, DualWrite, "a", "10.0.0.9");
    let by_b = |modes: &[_]| made(modes).no_service_through(B, "a");
    is(ask(by_b(&[DualWrite, IpAddress]).no_object("10.0.0.9")), Rule::E8, &[Hazard::StaleBit]);
    is(ask(by_b(&[DualWrite, Bitmap]).clear("10.0.0.9")), Rule::E8, &[Hazard::OrphanIpAddress]);
    is(ask(by_b(&[DualWrite, DualWrite]).no_object("10.0.0.9")), Rule::E8, &[]);
    // Every static create is refused, and nothing holds the address.
    is(ask(Recording::of(&[DualWrite])), Rule::E8, &[]);
    // A refused create leaves its bit: the next one is refused for it.
    let orphan = by_b(&[DualWrite, Bitmap]).clear("10.0.0.9").wait(20).bit("10.0.0.9");
    let kept = orphan.refused_static(A, "x", "10.0.0.9").wait(60).no_object("10.0.0.9");
    let verdict = judged(kept.wait(20).refused_static(A, "y", "10.0.0.9"));
    let causes: Vec<BTreeSet<Hazard>> = verdict.of(Rule::E8).map(|it| it.causes.clone()).collect();
    assert_eq!(causes, [[Hazard::OrphanIpAddress].into(), [Hazard::RefusedCreateKeepsBit].into()]);
}

#[test]
fn what_is_left_at_the_end_is_counted_and_explained() {
    let dual = || Recording::of(&[DualWrite, IpAddress]).create(A, DualWrite, "a", "10.0.0.9");
    leaves(dual().no_service_through(B, "a").no_object("10.0.0.9"), &[Some(Hazard::StaleBit)]);
    leaves(dual().no_service("a").no_object("10.0.0.9"), &[None]);
    leaves(dual().delete(DualWrite, "a", "10.0.0.9"), &[]);
    leaves(dual().bit("10.0.0.12").unknown(A, "b", &["10.0.0.12"]), &[Some(Hazard::CrashKeepsLock)]);
    leaves(dual().bit("10.0.0.12"), &[None]);
}

#[test]
fn a_failed_start_is_the_lost_race_only_if_the_log_names_it_and_others_had_traffic() {
    let start = |it: Recording| it.started(B, IpAddress);
    let exited = |it: Recording, log: &str| it.event(TopologyEvent::Exited { server: B, log: vec![log.into()] });
    let with_traffic =
        |log: &str| exited(start(Recording::of(&[IpAddress])).create(A, IpAddress, "a", "10.0.0.9"), log);
    const RACE: &str = "ipaddresses.networking.k8s.io \"10.0.0.9\" already exists";
    is(with_traffic(RACE), Rule::E5, &[Hazard::FirstRepairPassLost]);
    is(with_traffic("admission webhook denied the request"), Rule::E5, &[]);
    is(exited(start(Recording::of(&[IpAddress])), RACE), Rule::E5, &[]);
    is(with_traffic("no kind \"IPAddress\" is registered for version \"networking.k8s.io/v1\""), Rule::E5, &[]);
}

#[test]
fn a_full_range_is_the_walk_of_a_stopping_server_up_to_1_34_only() {
    let of = |minor, patch| {
        let mut it = Recording::of(&[]);
        it.start(A, ServerSpec::new(KubeVersion::new(minor, patch)).ranges(&[it.range]));
        it.ready(A).wait(20)
    };
    is(stop(of(34, 4), A).refused(A, "x", &[], FULL), Rule::E6, &[Hazard::StopWalksTheRange]);
    is(stop(of(35, 4), A).refused(A, "x", &[], FULL), Rule::E6, &[]);
    is(of(34, 4).refused(A, "x", &[], FULL), Rule::E6, &[]);
}

#[test]
fn a_server_whose_creations_write_other_locks_than_planned_is_not_as_planned() {
    let made = (1..=12).fold(Recording::of(&[IpAddress]), |it, last| {
        it.bit(&format!("10.0.0.{last}")).create(A, IpAddress, &format!("s-{last}"), &format!("10.0.0.{last}"))
    });
    let verdict = judge(&CaseContext::default(), made.end());
    assert_eq!(verdict.judgement, Judgement::Inconclusive);
    let said = verdict.assumptions[0].to_string();
    assert!(said.contains("server-1 is planned as IPAddress only") && said.contains("dual write"), "{said}");
}

#[test]
fn a_rule_that_was_never_due_is_not_counted_as_judged() {
    let verdict = judged(
        Recording::of(&[Bitmap, IpAddress]).create(B, IpAddress, "a", "10.0.0.9").event(TopologyEvent::Teardown),
    );
    let of = |rule| verdict.rules[&rule];
    assert_eq!((of(Rule::E2).judged, of(Rule::E2).open), (0, 1));
    assert_eq!((of(Rule::S1).judged, of(Rule::E4).judged, of(Rule::S12).judged), (1, 0, 0));
    assert!(verdict.unexplained(&[]).next().is_none());
}

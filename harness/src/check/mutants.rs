//! The rules against the corpus, and every altered definition against the same corpus.

use super::corpus::{corpus, key};
use super::{
    CaseContext, Definitions, Detail, Judgement, Rule, Sometimes, Unmet, Verdict, View, chart, explain, judge, judge_by,
};
use crate::gates::AllocatorMode;
use crate::history::{Change, Completeness, End, Entry, Micros, Operation, Revision, ServerId};
use crate::net::{Band, ServiceRange, from_bits, to_bits};
use crate::refusal::{Refusal, classify};

#[test]
fn every_recording_of_the_corpus_breaks_exactly_its_rules() {
    let mut wrong = String::new();
    for case in corpus() {
        let verdict = judge(&case.context, case.entries);
        if verdict.rules() != case.broken || !verdict.assumptions.is_empty() {
            wrong += &format!(
                "{}: expected {:?}, judged {:?} {:?} {:#?}\n",
                case.name,
                case.broken,
                verdict.rules(),
                verdict.assumptions,
                verdict.violations
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A definition altered, and a recording of the corpus that is then judged differently.
struct Mutant {
    name: &'static str,
    alter: fn(&mut Definitions),
}

fn mutant(name: &'static str, alter: fn(&mut Definitions)) -> Mutant {
    Mutant { name, alter }
}

const MINUTES: u64 = 60_000_000;

fn shifted(range: &ServiceRange, by: i128) -> Band {
    let band = range.dynamic_band();
    Band { first: from_bits((to_bits(band.first) as i128 + by) as u128, range.is_ipv4()), last: band.last }
}

fn mutants() -> Vec<Mutant> {
    vec![
        mutant("two owners are allowed", |it| it.owners_allowed = 2),
        mutant("one owner is too many", |it| it.owners_allowed = 0),
        mutant("a Service that waits for finalizers holds nothing", |it| it.holds = |service| !service.deleting),
        mutant("the upper band begins one address early", |it| it.upper_band = |range| shifted(range, -1)),
        mutant("the upper band begins one address late", |it| it.upper_band = |range| shifted(range, 1)),
        mutant("network and broadcast can be granted", |it| it.can_grant = |range, ip| range.contains(ip)),
        mutant("the last address cannot be granted", |it| {
            it.can_grant = |range, ip| range.can_grant(ip) && ip != range.usable().last;
        }),
        mutant("a ServiceCIDR without a condition is not ready", |it| it.usable = |cidr| cidr.ready == Some(true)),
        mutant("a terminating ServiceCIDR is ready", |it| it.usable = |cidr| cidr.ready != Some(false)),
        mutant("a ServiceCIDR that is not ready is ready", |it| it.usable = |cidr| !cidr.deleting),
        mutant("informers never lag", |it| it.bounds.informer_lag = Micros(0)),
        mutant("informers lag by ten minutes", |it| it.bounds.informer_lag = Micros(10 * MINUTES)),
        mutant("a release takes no time", |it| it.bounds.release = Micros(0)),
        mutant("a release takes ten minutes", |it| it.bounds.release = Micros(10 * MINUTES)),
        mutant("refused calls have no late effect", |it| it.bounds.late_effect = Micros(0)),
        mutant("AlreadyExists counts as any other refusal", |it| {
            it.refusal = |code, _, message| classify(code, "", message).filter(|it| *it != Refusal::Conflict);
        }),
        mutant("no refusal is about allocation", |it| it.refusal = |_, _, _| None),
        mutant("every refusal is a full range", |it| it.refusal = |_, _, _| Some(Refusal::RangeFull)),
        mutant("nobody repairs IPAddresses", |it| it.repairs_ip_addresses = |_| false),
        mutant("bitmap servers repair IPAddresses", |it| it.repairs_ip_addresses = |_| true),
        mutant("nobody repairs the bitmap", |it| it.repairs_bitmap = |_| false),
        mutant("dual-write servers repair the bitmap", |it| it.repairs_bitmap = AllocatorMode::writes_bitmap),
        mutant("dual write needs no second lock", |it| it.holds_both_locks = |_| false),
        mutant("every mode needs both locks", |it| it.holds_both_locks = |_| true),
        mutant("an allocation may change two bits", |it| it.bits_per_allocation = 2),
        mutant("an allocation may change no bit", |it| it.bits_per_allocation = 0),
        mutant("bitmap servers look at IPAddresses", |it| it.view = |_| View::IpAddresses),
        mutant("IPAddress servers look at bits", |it| it.view = |_| View::Bits),
        mutant("every server is an IPAddress server", |it| it.mode = |_| Some(AllocatorMode::IpAddress)),
        mutant("every server is a bitmap server", |it| it.mode = |_| Some(AllocatorMode::Bitmap)),
        mutant("orphans have a grace of 0 s instead of 60 s", |it| it.bounds.orphan_ip_address = Micros(0)),
        mutant("orphans may stay an hour", |it| it.bounds.orphan_ip_address = Micros(60 * MINUTES)),
        mutant("a leak must be cleared by the first pass", |it| it.bounds.leaked_bit = Micros(4 * MINUTES)),
        mutant("a leak may stay an hour", |it| it.bounds.leaked_bit = Micros(60 * MINUTES)),
        mutant("a missing bit must be set in a minute", |it| it.bounds.missing_bit = Micros(MINUTES)),
        mutant("a missing bit may stay missing an hour", |it| it.bounds.missing_bit = Micros(60 * MINUTES)),
        mutant("a missing IPAddress must follow in a minute", |it| it.bounds.missing_ip_address = Micros(MINUTES)),
        mutant("a missing IPAddress may take an hour", |it| it.bounds.missing_ip_address = Micros(60 * MINUTES)),
        mutant("a duplicate must be reported in a minute", |it| it.bounds.unreported_duplicate = Micros(MINUTES)),
        mutant("a duplicate may go unreported for an hour", |it| it.bounds.unreported_duplicate = Micros(60 * MINUTES)),
        mutant("a server may take an hour to start", |it| it.bounds.start = Micros(60 * MINUTES)),
        mutant("a server must start in ten seconds", |it| it.bounds.start = Micros(MINUTES / 6)),
        mutant("two rewrites are a fight", |it| it.bounds.rewrites = 1),
        mutant("ten rewrites are no fight", |it| it.bounds.rewrites = 10),
        mutant("no call takes time", |it| it.took = |_| Micros(0)),
        mutant("a call lasts from the start of the recording", |it| it.took = |operation| operation.returned),
        mutant("the recorder's watch is never late", |it| it.bounds.recorder_lag = Micros(0)),
        mutant("the recorder's watch is ten minutes late", |it| it.bounds.recorder_lag = Micros(10 * MINUTES)),
    ]
}

#[test]
fn every_altered_definition_changes_the_verdict_on_a_recording() {
    let corpus = corpus();
    let mut missed = Vec::new();
    for mutant in mutants() {
        let mut definitions = Definitions::default();
        (mutant.alter)(&mut definitions);
        let caught = corpus.iter().find_map(|case| {
            let rules = judge_by(&definitions, &case.context, case.entries.clone()).rules();
            let differs = |rule: &&Rule| rules.contains(rule) != case.broken.contains(rule);
            let rule = Rule::ALL.iter().find(differs)?;
            let how = if case.broken.contains(rule) { "no longer found" } else { "false alarm" };
            Some(format!("checker  {:<4} {how:<16} {} ({})", rule.id(), mutant.name, case.name))
        });
        match caught {
            Some(line) => println!("{line}"),
            None => missed.push(mutant.name),
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[test]
fn a_duplicate_is_explained_by_what_the_second_server_reads_and_what_it_does_not() {
    let of = |name: &str| corpus().into_iter().find(|case| case.name == name).unwrap();
    let case = of("one address granted by bitmap and by IPAddress");
    let verdict = judge(&case.context, case.entries);
    let [violation] = verdict.violations.as_slice() else { panic!("{:?}", verdict.violations) };
    assert_eq!(
        explain(violation),
        "10.0.0.9 belonged to two Services from revision 6 to the end of the recording. \
         Service default/a (client 1 through server-1, bitmap) took it at revision 4 (20.070 s), having asked for it. \
         Service default/b (client 2 through server-2, IPAddress only) took it at revision 6 (20.100 s), having asked for it. \
         server-2 (IPAddress only) relies on the IPAddress: the IPAddress of that name was last written at revision 5 and \
         names default/b. It does not read the bitmap, where its bit had been set since revision 3 all the same (bitmap of \
         revision 3)."
    );
    let svg = chart(violation).unwrap();
    for words in ["server-1 (bitmap)", "server-2 (IPAddress only)", "default/b, revision"] {
        assert!(svg.contains(words), "{words} is missing in {svg}");
    }
    assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && !svg.contains("href"));
}

#[test]
fn text_in_a_chart_is_escaped() {
    let case = corpus().into_iter().find(|case| case.name == "one address granted by bitmap and by IPAddress").unwrap();
    let mut verdict = judge(&case.context, case.entries);
    let Detail::Duplicate(duplicate) = &mut verdict.violations[0].detail else { panic!("must be a duplicate") };
    duplicate.second.owner.service.name = "<script>&\"\u{1}".into();
    let svg = chart(&verdict.violations[0]).unwrap();
    assert!(svg.contains("&lt;script&gt;&amp;&quot;\u{fffd}") && !svg.contains("<script"));
}

#[test]
fn every_violation_of_the_corpus_has_words_and_survives_json() {
    for case in corpus() {
        let verdict = judge(&case.context, case.entries);
        let json = serde_json::to_string_pretty(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict, "{}", case.name);
        for violation in &verdict.violations {
            assert!(explain(violation).len() > 30, "{violation:?}");
        }
    }
}

#[test]
fn a_recording_that_breaks_an_assumption_is_inconclusive() {
    let case = corpus().into_iter().find(|case| case.name == "one address granted by bitmap and by IPAddress").unwrap();
    let entries = case.entries;
    let judged = |alter: &dyn Fn(&mut Vec<Entry>)| {
        let mut entries = entries.clone();
        alter(&mut entries);
        let verdict = judge(&case.context, entries);
        assert_eq!(verdict.judgement, Judgement::Inconclusive, "{:?}", verdict.assumptions);
        format!("{:?}", verdict.assumptions)
    };
    let client = |entries: &mut Vec<Entry>, alter: &dyn Fn(&mut Operation)| {
        for entry in entries {
            if let Entry::Operation(operation) = entry {
                alter(operation);
            }
        }
    };
    assert!(judged(&|entries| drop(entries.pop())).contains("NoEnd"));
    assert!(judged(&|entries| entries.swap(5, 6)).contains("RevisionsOutOfOrder"));
    assert!(judged(&|entries| client(entries, &|it| it.client = 1)).contains("CallsOverlap"));
    assert!(judged(&|entries| client(entries, &|it| it.server = ServerId(7))).contains("UnknownServer"));
    assert!(judged(&|entries| client(entries, &|it| it.invoked = Micros(it.returned.0 + 1))).contains("TimeRuns"));
    let gone = Entry::Revision(Revision { revision: 7, at: Micros(1), change: Change::DeleteService(key("never")) });
    assert!(judged(&|entries| entries.insert(entries.len() - 1, gone.clone())).contains("RemovedUnstored"));
    assert!(judged(&|entries| entries.push(gone.clone())).contains("EntryAfterEnd"));
    let why = "compacted".to_string();
    let end = Entry::End(End { at: Micros(1), last_revision: 6, completeness: Completeness::Void { why } });
    assert!(judged(&|entries| *entries.last_mut().unwrap() = end.clone()).contains("compacted"));
}

#[test]
fn a_required_condition_that_was_not_met_makes_a_clean_run_inconclusive() {
    let case = corpus().into_iter().find(|case| case.broken.is_empty()).unwrap();
    let required = [(Sometimes::RangeFull, 1)].into();
    let verdict = judge(&CaseContext { required, ..case.context }, case.entries);
    assert_eq!(verdict.judgement, Judgement::Inconclusive);
    assert_eq!(verdict.unmet, [Unmet { condition: Sometimes::RangeFull, required: 1, met: 0 }]);
}

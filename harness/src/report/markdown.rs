//! `summary.md`: the verdicts and what did not come out as expected.

use super::{ComboSummary, Summary};
use crate::hazard::Hazard;
use crate::record::CaseOutcome;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The modes of a combo, `bitmap + dual write`, with versions where they differ.
pub fn modes(combo: &ComboSummary) -> String {
    let one_version = combo.servers.iter().all(|server| server.version == combo.old.version);
    let text = |server: &super::ServerSummary| {
        let emulated = server.emulated.as_ref().map_or(String::new(), |minor| format!(" as {minor}"));
        if one_version {
            format!("{}{emulated}", server.mode)
        } else {
            format!("{}{emulated} {}", server.version, server.mode)
        }
    };
    combo.servers.iter().map(text).collect::<Vec<_>>().join(" + ")
}

/// The hazards of a combo with their counts.
pub fn hazards(combo: &ComboSummary) -> String {
    if combo.hazards.is_empty() { "none".into() } else { counts(&combo.hazards) }
}

/// Hazards with their counts, `no-shared-lock (93), stale-bit (10)`.
pub(super) fn counts(hazards: &BTreeMap<Hazard, u64>) -> String {
    hazards.iter().map(|(hazard, count)| format!("{hazard} ({count})")).collect::<Vec<_>>().join(", ")
}

/// The text of `summary.md`.
pub fn render(summary: &Summary) -> String {
    let totals = summary.totals;
    let mut text = format!(
        "# skewlab {}\n\n{} cases in {:.0} s: {} as expected, {} failed, {} without a verdict, {} skipped; a hazard showed in {}.\n\n",
        summary.run,
        totals.cases,
        summary.seconds,
        totals.passed,
        totals.failed,
        totals.errors,
        totals.skipped,
        totals.hazards
    );
    text += "| combo | modes | verdict | hazards (most in one case) |\n| --- | --- | --- | --- |\n";
    for combo in &summary.combos {
        let _ = writeln!(text, "| `{}` | {} | {} | {} |", combo.name, modes(combo), combo.verdict, hazards(combo));
    }
    if !summary.notes.is_empty() {
        text += "\n## Notes\n\n";
        for note in &summary.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    let shown: BTreeSet<Hazard> = summary.combos.iter().flat_map(|combo| combo.hazards.keys().copied()).collect();
    if !shown.is_empty() {
        text += "\n## Hazards\n\n";
        for facts in shown.iter().map(|hazard| hazard.facts()) {
            let _ = writeln!(
                text,
                "- **{}** ({}; holds for {}): {}",
                facts.id, facts.upstream, facts.versions, facts.sentence
            );
        }
    }
    let odd: Vec<_> = summary.cases.iter().filter(|case| case.outcome != CaseOutcome::Passed).collect();
    if !odd.is_empty() {
        text += "\n## Not as expected\n\n";
        for case in odd {
            let detail = case.detail.lines().collect::<Vec<_>>().join("\n  ");
            let _ = writeln!(text, "- `{}`: {:?}\n\n  {detail}\n", case.name, case.outcome);
        }
    }
    text += "\n## Cases\n\n| suite | case | outcome | s | observed |\n| --- | --- | --- | --- | --- |\n";
    for case in &summary.cases {
        let observed = case.observed.replace('|', "\\|");
        let _ = writeln!(
            text,
            "| {} | `{}` | {:?} | {:.1} | {observed} |",
            case.suite, case.name, case.outcome, case.seconds
        );
    }
    text
}

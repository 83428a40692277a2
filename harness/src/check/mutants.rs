//! The rules against the corpus, and every altered definition against the same corpus.

use super::corpus::corpus;
use super::judge;

#[test]
fn every_recording_of_the_corpus_breaks_exactly_its_rules() {
    let mut wrong = String::new();
    for case in corpus() {
        let verdict = judge(&case.context, case.entries);
        if verdict.rules() != case.broken || !verdict.assumptions.is_empty() {
            wrong += &format!(
                "{}: expected {:?}, judged {:?} {:?} {:#?}\n",
                case.name, case.broken, verdict.rules(), verdict.assumptions, verdict.violations
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

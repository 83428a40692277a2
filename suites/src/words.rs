//! What servers answered, in words: messages are read by people.

use harness::history::{Operation, Outcome};
use std::fmt::Display;

/// An answer as a person would say it.
pub fn answer(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ok { granted, .. } if granted.is_empty() => "done".into(),
        Outcome::Ok { granted, .. } => format!("done with {}", list(granted)),
        Outcome::Refused { code, reason, message } => format!("refused with {code} {reason}: {message}"),
        Outcome::Unknown { detail } => format!("no answer that says what was done ({detail})"),
    }
}

/// Which server answered what: `server-1 done with 10.0.0.9, server-2 refused with 422 Invalid: ...`.
pub fn answers(operations: &[Operation]) -> String {
    let texts: Vec<String> = operations.iter().map(|it| format!("{} {}", it.server, answer(&it.outcome))).collect();
    texts.join(", ")
}

/// Values one after the other; `none` if there are none.
pub fn list<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_said_without_the_names_of_types() {
        let granted = |ips: &[&str]| Outcome::Ok {
            granted: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            uid: "u".into(),
            revision: 7,
        };
        assert_eq!(answer(&granted(&[])), "done");
        assert_eq!(answer(&granted(&["10.0.0.9", "fd00::9"])), "done with 10.0.0.9, fd00::9");
        let refused = Outcome::Refused { code: 422, reason: "Invalid".into(), message: "already allocated".into() };
        assert_eq!(answer(&refused), "refused with 422 Invalid: already allocated");
        let open = Outcome::Unknown { detail: "connection reset".into() };
        assert_eq!(answer(&open), "no answer that says what was done (connection reset)");
        assert_eq!(list(Vec::<u8>::new()), "none");
    }
}

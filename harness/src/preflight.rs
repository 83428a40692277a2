//! What a run needs of its host: facts in, a line per fact out. The facts themselves come from `host`.

pub mod containers;
pub mod kind;
pub mod local;

use std::fmt;

/// What one fact means for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What was looked at, in a word or two.
    pub fact: &'static str,
    /// What was seen.
    pub seen: String,
    /// Whether it is enough.
    pub state: State,
}

/// Whether a fact is enough for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is.
    Fine,
    /// For some runs, or nobody knows.
    Doubtful {
        /// What to do about it.
        advice: String,
    },
    /// It is not.
    Fails {
        /// What to do about it.
        advice: String,
    },
}

impl Line {
    /// A fact that is enough.
    pub fn fine(fact: &'static str, seen: impl Into<String>) -> Line {
        Line { fact, seen: seen.into(), state: State::Fine }
    }

    /// A fact that is not enough for every run.
    pub fn doubtful(fact: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { fact, seen: seen.into(), state: State::Doubtful { advice: advice.into() } }
    }

    /// A fact that keeps runs from working.
    pub fn fails(fact: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { fact, seen: seen.into(), state: State::Fails { advice: advice.into() } }
    }

    /// Whether it keeps runs from working.
    pub fn is_failure(&self) -> bool {
        match self.state {
            State::Fails { .. } => true,
            State::Fine | State::Doubtful { .. } => false,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { fact, seen, state } = self;
        match state {
            State::Fine => write!(f, "ok    {fact}: {seen}"),
            State::Doubtful { advice } => write!(f, "maybe {fact}: {seen}; {advice}"),
            State::Fails { advice } => write!(f, "FAIL  {fact}: {seen}; {advice}"),
        }
    }
}

/// Bytes as gigabytes with one decimal.
fn gb(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_seen_and_what_to_do() {
        assert_eq!(Line::fine("go", "go1.26").to_string(), "ok    go: go1.26");
        assert_eq!(Line::fails("go", "not on PATH", "install it").to_string(), "FAIL  go: not on PATH; install it");
    }
}

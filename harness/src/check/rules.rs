//! The rules, each with its id and a plain sentence.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A rule of ClusterIP allocation. `S` rules hold at every revision, `E` rules within a bound once their assumption
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "`Rule::sentence` says what each one is")]
pub enum Rule {
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    S7,
    S8,
    S9,
    S10,
    S11,
    S12,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
}

impl Rule {
    /// Every rule, in order.
    pub const ALL: [Rule; 20] = [
        Rule::S1,
        Rule::S2,
        Rule::S3,
        Rule::S4,
        Rule::S5,
        Rule::S6,
        Rule::S7,
        Rule::S8,
        Rule::S9,
        Rule::S10,
        Rule::S11,
        Rule::S12,
        Rule::E1,
        Rule::E2,
        Rule::E3,
        Rule::E4,
        Rule::E5,
        Rule::E6,
        Rule::E7,
        Rule::E8,
    ];

    /// `S1` to `E8`.
    pub fn id(self) -> &'static str {
        match self {
            Rule::S1 => "S1",
            Rule::S2 => "S2",
            Rule::S3 => "S3",
            Rule::S4 => "S4",
            Rule::S5 => "S5",
            Rule::S6 => "S6",
            Rule::S7 => "S7",
            Rule::S8 => "S8",
            Rule::S9 => "S9",
            Rule::S10 => "S10",
            Rule::S11 => "S11",
            Rule::S12 => "S12",
            Rule::E1 => "E1",
            Rule::E2 => "E2",
            Rule::E3 => "E3",
            Rule::E4 => "E4",
            Rule::E5 => "E5",
            Rule::E6 => "E6",
            Rule::E7 => "E7",
            Rule::E8 => "E8",
        }
    }

    /// What must hold.
    pub fn sentence(self) -> &'static str {
        match self {
            Rule::S1 => "no address belongs to two live Services",
            Rule::S2 => "the first ClusterIP of a Service never changes while it is not of type ExternalName",
            Rule::S3 => {
                "a granted address is a usable one of a ready range, and one nobody asked for comes from the upper band while that has room"
            }
            Rule::S4 => "a creation that was answered with success is stored, as answered",
            Rule::S5 => "a creation that was refused stores no Service",
            Rule::S6 => "an address that was asked for and granted is the address asked for",
            Rule::S7 => "the lock of an address is not given up while its Service lives",
            Rule::S8 => {
                "an allocation changes one bit, only repair changes more, and the bitmap keeps its range and its size"
            }
            Rule::S9 => {
                "under dual write a Service becomes visible only when both its bit and its IPAddress are written"
            }
            Rule::S10 => "in a quiet phase no key is rewritten back and forth",
            Rule::S11 => "a Service goes when a call deletes it, and only then",
            Rule::S12 => "under dual write the two locks are taken in the order of the server's version",
            Rule::E1 => "every address of a live Service gets its IPAddress",
            Rule::E2 => "every address of a live Service gets its bit while a bitmap server lives",
            Rule::E3 => "an IPAddress or bit without a Service is removed by the repair that owns it",
            Rule::E4 => "an address that belongs to two Services is reported by an Event",
            Rule::E5 => "a started server becomes ready",
            Rule::E6 => "a creation that leaves the choice of address to the server succeeds while an address is free",
            Rule::E7 => "a creation is answered within the latency bound",
            Rule::E8 => "a creation that asks for an address that no Service holds is not refused as taken",
        }
    }

    /// Whether the rule holds at every revision, not only eventually.
    pub fn is_safety(self) -> bool {
        self <= Rule::S12
    }
}

/// What of the rules rests on the bitmaps, and is not judged where they were not recorded.
pub const NOT_JUDGED_WITHOUT_BITMAPS: [(Rule, &str); 9] = [
    (Rule::S3, "that a server that reads the bitmap prefers the upper band"),
    (Rule::S7, "for bits"),
    (Rule::S8, "at all"),
    (Rule::S9, "for bits"),
    (Rule::E2, "at all"),
    (Rule::E3, "for bits"),
    (Rule::S12, "at all"),
    (Rule::E6, "of servers that read the bitmap"),
    (Rule::E8, "of servers that read the bitmap"),
];

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

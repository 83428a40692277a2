//! Why a kube-apiserver ends at its start, read from what it logs: the one table of such lines.

/// Most lines that are kept of one start.
pub const MOST_LINES: usize = 20;
/// Longest line that is kept, in bytes.
pub const LONGEST_LINE: usize = 300;

/// What a line of a log says about a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartFailure {
    /// The start hook of the repair loops gave up after a minute.
    CheckFailed,
    /// Another server made the same IPAddress, or wrote the same bitmap, first.
    RaceLost,
    /// etcd holds objects in a version of the API that the server does not know.
    UnreadableStorage,
    /// A write was refused by admission.
    Admission,
    /// A webhook did not answer.
    Webhook,
    /// etcd did not answer.
    Etcd,
}

/// A line with all of these texts says this; the first that fits counts.
const TABLE: [(&[&str], StartFailure); 9] = [
    (&["is registered for version \"networking.k8s.io/"], StartFailure::UnreadableStorage),
    (&["unable to perform initial IP and Port allocation check"], StartFailure::CheckFailed),
    (&["ipaddresses", "already exists"], StartFailure::RaceLost),
    (&["the provided resource version does not match"], StartFailure::RaceLost),
    (&["failed calling webhook"], StartFailure::Webhook),
    (&["not yet ready to handle request"], StartFailure::Admission),
    (&["forbidden"], StartFailure::Admission),
    (&["etcdserver:"], StartFailure::Etcd),
    (&["connection refused"], StartFailure::Etcd),
];

/// What a line says about a start that failed; `None` for any other line.
pub fn classify(line: &str) -> Option<StartFailure> {
    let found = TABLE.iter().find(|(texts, _)| texts.iter().all(|text| line.contains(text)));
    found.map(|(_, failure)| *failure)
}

/// The first [`MOST_LINES`] lines that name a reason, in order, each cut to [`LONGEST_LINE`] bytes.
pub fn reasons<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let naming = lines.filter(|line| classify(line).is_some());
    naming.take(MOST_LINES).map(cut).collect()
}

/// A line, or its beginning.
fn cut(line: &str) -> String {
    let mut end = line.len().min(LONGEST_LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line[..end].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_failed_starts_are_classified() {
        let lines = [
            (
                "F0101 01:02:03.4 1 controllerloop.go:88] \"unhandled\" err=\"PostStartHook \\\"start-service-ip-repair-\
                 controllers\\\" failed: unable to perform initial IP and Port allocation check\"",
                Some(StartFailure::CheckFailed),
            ),
            (
                "E0101 repairip.go:1] ipaddresses.networking.k8s.io \"10.0.0.1\" already exists",
                Some(StartFailure::RaceLost),
            ),
            ("E0101 repair.go:1] the provided resource version does not match", Some(StartFailure::RaceLost)),
            (
                "W0101 no kind \"IPAddress\" is registered for version \"networking.k8s.io/v1\" in scheme",
                Some(StartFailure::UnreadableStorage),
            ),
            ("E0101 services \"a\" is forbidden: not yet ready to handle request", Some(StartFailure::Admission)),
            ("E0101 Internal error occurred: failed calling webhook \"a.b\"", Some(StartFailure::Webhook)),
            ("E0101 etcdserver: request timed out", Some(StartFailure::Etcd)),
            ("E0101 dial tcp 127.0.0.1:2379: connect: connection refused", Some(StartFailure::Etcd)),
            ("E0101 namespaces \"kube-system\" already exists", None),
            ("I0101 Serving securely on 127.0.0.1:6443", None),
        ];
        for (line, expected) in lines {
            assert_eq!(classify(line), expected, "{line}");
        }
    }

    #[test]
    fn few_and_short_lines_are_kept_in_order() {
        let long = format!("etcdserver: {}", "é".repeat(400));
        let lines: Vec<&str> = ["I0101 nothing", &long].into_iter().cycle().take(100).collect();
        let kept = reasons(lines.into_iter());
        assert_eq!(kept.len(), MOST_LINES);
        assert!(kept.iter().all(|line| line.len() <= LONGEST_LINE && line.starts_with("etcdserver:")));
    }
}

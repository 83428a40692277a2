//! JUnit XML: one testsuite per suite, one testcase per planned case.

use super::{ComboSummary, Summary};
use crate::record::CaseOutcome;
use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite, XmlString};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest text of one element, in bytes: CI systems refuse reports of many megabytes.
const LONGEST_TEXT: usize = 64 << 10;

/// The text of `junit.xml`. `output_of` gives what a case printed, as far as it should be in the report; control bytes
/// that XML cannot hold are dropped.
///
/// # Errors
/// The XML writer fails, which it does for no known input.
pub fn render(
    summary: &Summary,
    output_of: impl Fn(&super::CaseSummary) -> String,
) -> Result<String, quick_junit::SerializeError> {
    let mut suites: BTreeMap<&str, TestSuite> = BTreeMap::new();
    let combos: BTreeMap<&str, &ComboSummary> = summary.combos.iter().map(|it| (it.name.as_str(), it)).collect();
    for case in &summary.cases {
        let mut status = match case.outcome {
            CaseOutcome::Passed => TestCaseStatus::success(),
            CaseOutcome::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
            CaseOutcome::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
            CaseOutcome::Skipped => TestCaseStatus::skipped(),
        };
        if case.outcome != CaseOutcome::Passed {
            status.set_message(first_line(&case.detail)).set_description(bounded(&case.detail));
        }
        let mut testcase = TestCase::new(case.name.as_str(), status);
        testcase.set_classname(case.suite.as_str()).set_time(Duration::from_secs_f64(case.seconds.max(0.0)));
        let mut property = |name: String, value: &str| {
            testcase.add_property(Property::new(name, XmlString::new(bounded(value))));
        };
        property("expectation".into(), &case.expectation);
        property("observed".into(), &case.observed);
        for (hazard, count) in &case.hazards {
            property(format!("hazard.{hazard}"), &count.to_string());
        }
        for (name, value) in &case.measured {
            property(format!("measured.{name}"), &format!("{value:.3}"));
        }
        for (index, server) in combos.get(case.combo.as_str()).iter().flat_map(|combo| &combo.servers).enumerate() {
            let number = index + 1;
            property(format!("server-{number}.version"), &server.version);
            if let Some(emulated) = &server.emulated {
                property(format!("server-{number}.emulated"), emulated);
            }
            property(format!("server-{number}.mode"), &server.mode);
            property(format!("server-{number}.gates"), &server.gates);
        }
        if case.outcome != CaseOutcome::Passed {
            testcase.set_system_out(bounded(&output_of(case)));
        }
        suites.entry(&case.suite).or_insert_with(|| TestSuite::new(case.suite.as_str())).add_test_case(testcase);
    }
    let mut report = Report::new(format!("skewlab {}", summary.run));
    report.set_time(Duration::from_secs_f64(summary.seconds.max(0.0)));
    report.add_test_suites(suites.into_values());
    report.to_string()
}

fn first_line(text: &str) -> &str {
    bounded(text.lines().next().unwrap_or_default())
}

/// The end of a text, where the reason stands. The whole of it is in the folder of the case.
fn bounded(text: &str) -> &str {
    let mut begin = text.len().saturating_sub(LONGEST_TEXT);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    &text[begin..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summarize;
    use crate::report::tests::{plan, record};

    #[test]
    fn the_report_is_valid_xml_whatever_a_case_printed() {
        let hostile = format!("\u{1b}[31mred\u{0} ]]> <&> \u{fffe} {}", "x".repeat(5 << 20));
        let summary = summarize(&plan(), 9.0, |id| {
            let mut record = record(id, CaseOutcome::Failed, &[]);
            record.detail = hostile.clone();
            record.observed.summary = hostile.clone();
            Ok(record)
        });
        let xml = render(&summary, |_| hostile.clone()).unwrap();
        assert!(xml.chars().all(|it| it == '\n' || it == '\t' || it == '\r' || it >= ' '));
        let parsed = Report::deserialize_from_str(&xml).unwrap();
        assert_eq!((parsed.tests, parsed.failures), (2, 2));
    }

    #[test]
    fn every_planned_case_is_a_testcase_with_the_versions_modes_and_gates_of_its_servers() {
        let summary = summarize(&plan(), 9.0, |_| Err("no result".into()));
        let xml = render(&summary, |_| String::new()).unwrap();
        let parsed = Report::deserialize_from_str(&xml).unwrap();
        assert_eq!((parsed.tests, parsed.errors), (2, 2));
        let case = &parsed.test_suites[0].test_cases[1];
        assert_eq!(case.name.as_str(), "one[v1_33_bitmap__v1_33_ip_address]");
        let property =
            |name: &str| case.properties.iter().find(|it| it.name.as_str() == name).unwrap().value.to_string();
        assert_eq!(property("server-1.mode"), "bitmap");
        assert_eq!(property("server-2.version"), "v1.33.13");
        assert_eq!(property("server-2.gates"), "MultiCIDRServiceAllocator=true,DisableAllocatorDualWrite=true");
    }
}

//! The combos as rstest cases. `cargo xtask e2e` compares these names with the table in `harness::combo`.

use rstest_reuse::template;

/// The v1.33 gate matrix.
#[template]
#[rstest::rstest]
#[case::v1_33_bitmap__v1_33_bitmap("v1_33_bitmap__v1_33_bitmap")]
#[case::v1_33_bitmap__v1_33_dual_write("v1_33_bitmap__v1_33_dual_write")]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[case::v1_33_dual_write__v1_33_bitmap("v1_33_dual_write__v1_33_bitmap")]
#[case::v1_33_dual_write__v1_33_dual_write("v1_33_dual_write__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_33_ip_address("v1_33_dual_write__v1_33_ip_address")]
#[case::v1_33_ip_address__v1_33_bitmap("v1_33_ip_address__v1_33_bitmap")]
#[case::v1_33_ip_address__v1_33_dual_write("v1_33_ip_address__v1_33_dual_write")]
#[case::v1_33_ip_address__v1_33_ip_address("v1_33_ip_address__v1_33_ip_address")]
#[case::v1_33_bitmap__v1_33_dual_write__v1_33_ip_address("v1_33_bitmap__v1_33_dual_write__v1_33_ip_address")]
#[case::existing("existing")]
pub fn gate_matrix(#[case] combo: &str) {}

/// The paths of upgrades and gate changes.
#[template]
#[rstest::rstest]
#[case::v1_31_bitmap__v1_32_bitmap("v1_31_bitmap__v1_32_bitmap")]
#[case::v1_32_bitmap__v1_33_dual_write("v1_32_bitmap__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_34_ip_address("v1_33_dual_write__v1_34_ip_address")]
#[case::v1_34_ip_address__v1_35_ip_address("v1_34_ip_address__v1_35_ip_address")]
#[case::v1_35_ip_address__v1_36_ip_address("v1_35_ip_address__v1_36_ip_address")]
#[case::v1_36_ip_address__v1_37_ip_address("v1_36_ip_address__v1_37_ip_address")]
#[case::v1_33_bitmap__v1_33_dual_write("v1_33_bitmap__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_33_ip_address("v1_33_dual_write__v1_33_ip_address")]
#[case::v1_33_bitmap__v1_33_ip_address("v1_33_bitmap__v1_33_ip_address")]
#[case::v1_31_bitmap__v1_31_dual_write("v1_31_bitmap__v1_31_dual_write")]
#[case::v1_32_bitmap__v1_32_dual_write("v1_32_bitmap__v1_32_dual_write")]
#[case::v1_32_dual_write__v1_33_dual_write("v1_32_dual_write__v1_33_dual_write")]
#[case::v1_33_dual_write__v1_34_dual_write("v1_33_dual_write__v1_34_dual_write")]
#[case::v1_33_bitmap__v1_34_ip_address("v1_33_bitmap__v1_34_ip_address")]
#[case::v1_34_ip_address__v1_34_as_1_33_bitmap("v1_34_ip_address__v1_34_as_1_33_bitmap")]
#[case::v1_36_ip_address__v1_36_as_1_33_bitmap("v1_36_ip_address__v1_36_as_1_33_bitmap")]
#[case::v1_36_ip_address__v1_37_as_1_34_ip_address("v1_36_ip_address__v1_37_as_1_34_ip_address")]
#[case::from_to("from_to")]
#[case::existing("existing")]
pub fn upgrade_paths(#[case] combo: &str) {}

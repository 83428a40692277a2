//! Exit status: the one place where a result becomes a number.

use harness::binaries::BinaryError;
use std::process::ExitCode;

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As expected.
    AsExpected,
    /// The system under test misbehaved.
    Misbehaved,
    /// The environment failed, so there is no verdict.
    NoVerdict,
}

/// A plan or argument that cannot work; nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

const MISBEHAVED: u8 = 1;
const USAGE: u8 = 2;
const ENVIRONMENT: u8 = 3;

/// Prints an error in one place and gives the exit status.
pub fn code(result: anyhow::Result<Ended>) -> ExitCode {
    match result {
        Ok(Ended::AsExpected) => ExitCode::SUCCESS,
        Ok(Ended::Misbehaved) => ExitCode::from(MISBEHAVED),
        Ok(Ended::NoVerdict) => ExitCode::from(ENVIRONMENT),
        Err(error) => {
            eprintln!("error: {error:#}");
            let unknown_minor = matches!(error.downcast_ref::<BinaryError>(), Some(BinaryError::UnknownMinor { .. }));
            let usage = error.downcast_ref::<PlanError>().is_some() || unknown_minor;
            ExitCode::from(if usage { USAGE } else { ENVIRONMENT })
        }
    }
}

//! What a run on servers that exist already needs: which they are, and the end of what it has made there.

use crate::cli::E2eArgs;
use crate::exit::PlanError;
use comfy_table::{Table, presets};
use harness::combo::Combo;
use harness::existing::ask::{self, AskError};
use harness::existing::{Existing, endpoint, namespace};
use harness::provider::{Lacking, Need, Provider};

/// Refuses flags that do not go with the provider.
///
/// # Errors
/// The first such flag.
pub fn check_flags(args: &E2eArgs) -> Result<(), PlanError> {
    let refused = |why: String| Err(PlanError(why));
    match args.provider {
        Provider::Local | Provider::Kind | Provider::Containers => {
            let given = [(!args.contexts.is_empty(), "--context"), (!args.kubeconfigs.is_empty(), "--kubeconfig")];
            match given.into_iter().find(|(given, _)| *given) {
                Some((_, flag)) => refused(format!(
                    "{flag} names servers that run already: it goes with --provider existing, not {}",
                    args.provider
                )),
                None => Ok(()),
            }
        }
        Provider::Existing if args.from.is_some() => {
            refused(format!("--from and --to: {}", Lacking { provider: args.provider, need: Need::Control }))
        }
        Provider::Existing if args.jobs.is_some_and(|jobs| jobs > 1) => {
            refused("--jobs: the cases of one cluster run one after the other, or they would race each other".into())
        }
        Provider::Existing => Ok(()),
    }
}

/// The servers of `--kubeconfig` and `--context`, and what they are.
///
/// # Errors
/// A command line that names none, or servers that a run cannot use.
pub async fn find_out(args: &E2eArgs) -> anyhow::Result<(Existing, Combo)> {
    let usage = |error: AskError| match error.is_usage() {
        true => PlanError(error.to_string()).into(),
        false => anyhow::Error::from(error),
    };
    let endpoints = endpoint::resolve(&args.kubeconfigs, &args.contexts).await.map_err(|error| usage(error.into()))?;
    let (existing, combo) = ask::find_out(endpoints).await.map_err(usage)?;
    combo.modes().map_err(|error| PlanError(format!("these servers cannot be judged: {error}")))?;
    Ok((existing, combo))
}

/// Prints what was found.
///
/// # Errors
/// A server that no release would start, which [`find_out`] refuses.
pub fn print(existing: &Existing, combo: &Combo) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["server", "context", "URL", "version", "mode", "ranges"]);
    for (index, (found, spec)) in existing.servers.iter().zip(&combo.servers).enumerate() {
        table.add_row([
            &format!("server-{}", index + 1),
            &found.endpoint.context,
            &found.endpoint.url,
            &found.git_version,
            &spec.mode()?.to_string(),
            &spec.ranges_flag(),
        ]);
    }
    println!("{table}");
    existing.notes.iter().for_each(|note| println!("note: {note}"));
    Ok(())
}

/// Removes the namespaces that cases have left, because they were killed; says what it could not remove.
pub async fn end(existing: &Existing, run: &str) {
    let Some(first) = existing.servers.first() else { return };
    let swept = match first.endpoint.client().await {
        Ok(client) => namespace::sweep(&client, run).await.map_err(|left| left.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match swept {
        Ok(names) => names.iter().for_each(|name| eprintln!("removed namespace {name}")),
        Err(why) => eprintln!("{why}"),
    }
}

/// Refuses a command that makes servers of its own.
///
/// # Errors
/// The provider makes none.
pub fn require_own_servers(provider: Provider) -> Result<(), PlanError> {
    provider.lacking(&[Need::Control]).map_or(Ok(()), |lacking| Err(PlanError(lacking.to_string())))
}

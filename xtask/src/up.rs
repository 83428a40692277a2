//! `cargo xtask up`: a control plane for a person to look at.

use crate::cli::UpArgs;
use crate::e2e::target_dir;
use crate::existing;
use crate::exit::{Ended, PlanError};
use crate::site;
use glob::Pattern;
use harness::binaries::{self, KubeComponent, Wanted};
use harness::cluster::{Binaries, ControlPlane, Purpose, Site};
use harness::combo::{self, Combo};
use harness::journal::Journal;
use harness::provider::{Lacking, Need};
use harness::version::KubeVersion;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the command.
///
/// # Errors
/// A pattern that does not match exactly one combo, or servers that do not start.
pub fn run(args: UpArgs) -> anyhow::Result<Ended> {
    site::check_built_in(args.provider, "up")?;
    existing::require_own_servers(args.provider)?;
    let combo = find(&args.combo)?;
    if args.data.is_some() && !args.provider.has(Need::ReuseData) {
        return Err(PlanError(Lacking { provider: args.provider, need: Need::ReuseData }.to_string()).into());
    }
    let controller_manager = controller_manager_version(&combo);
    let mut wanted = binaries::needed_by([&combo], false);
    wanted.extend(controller_manager.map(|version| Wanted::Kube(KubeComponent::ControllerManager, version)));
    let wanted = site::wanted_of(wanted, args.provider);
    let dir = args.data.unwrap_or_else(|| target_dir().join(format!("up-{}", std::process::id())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (binaries, site) = site::prepare(args.provider, &wanted, &[&combo], args.bin_dir, &runtime)?;
    runtime.block_on(stay(&site, &combo, controller_manager, &binaries, &dir))?;
    Ok(Ended::AsExpected)
}

fn find(text: &str) -> Result<Combo, PlanError> {
    let pattern = Pattern::new(text).map_err(|error| PlanError(format!("`{text}` is not a pattern: {error}")))?;
    let ids: Vec<String> = combo::all().iter().filter_map(|combo| combo.id().ok()).collect();
    let matching: Vec<&String> = ids.iter().filter(|id| *id == text || pattern.matches(id)).collect();
    match matching.as_slice() {
        [id] => combo::find(id).ok_or_else(|| PlanError(format!("no combo {id}"))),
        [] => Err(PlanError(format!("no combo `{text}`; there are:\n  {}", ids.join("\n  ")))),
        several => {
            let several: Vec<&str> = several.iter().map(|id| id.as_str()).collect();
            Err(PlanError(format!("`{text}` matches several combos:\n  {}", several.join("\n  "))))
        }
    }
}

/// A controller manager must not be newer than any apiserver: the oldest minor, in the patch that can be had.
fn controller_manager_version(combo: &Combo) -> Option<KubeVersion> {
    let oldest = combo.servers.iter().map(|server| server.version.minor).min()?;
    binaries::default_version(KubeComponent::ControllerManager, oldest)
}

async fn stay(
    site: &Site,
    combo: &Combo,
    controller_manager: Option<KubeVersion>,
    binaries: &Binaries,
    dir: &std::path::Path,
) -> anyhow::Result<()> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    let (sender, _receiver) = std::sync::mpsc::channel();
    let journal = Journal::new(sender);
    let mut plane = ControlPlane::start_etcd(site, dir, binaries, &journal, Purpose { first: combo, combo }).await?;
    let begin = async {
        plane.start_servers().await?;
        let oldest = plane.server_ids().into_iter().min_by_key(|id| plane.spec(*id).map(|spec| spec.version).ok());
        if let (Some(server), Some(version)) = (oldest, controller_manager) {
            plane.start_controller_manager(server, version).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        started = begin => started?,
        _ = interrupts.recv() => return Ok(()),
        _ = terminations.recv() => return Ok(()),
    }
    println!(
        "etcd: {} (ETCDCTL_API=3 etcdctl --endpoints={0} get /registry/ranges --prefix)",
        plane.etcd()?.endpoint()
    );
    for id in plane.server_ids() {
        let spec = plane.spec(id)?;
        println!("{id}: {} {}", spec.version, spec.mode()?);
        println!("  kubectl --kubeconfig {} get services -A", plane.layout().kubeconfig(id).display());
        println!("  log {}", plane.layout().log(&id.to_string()).display());
    }
    println!("Ctrl-C ends it; the data stays in {}", dir.display());
    loop {
        tokio::select! {
            _ = interrupts.recv() => break,
            _ = terminations.recv() => break,
            () = tokio::time::sleep(std::time::Duration::from_secs(1)) => plane.check_running().await?,
        }
    }
    plane.stop().await?;
    Ok(())
}

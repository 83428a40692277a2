//! What runs in containers need: images of the components, and what killed runs have left cleared away.

use crate::progress::Terminal;
use anyhow::Context;
use harness::binaries::{self, Sources, Wanted};
use harness::cluster::containers::Images;
use harness::cluster::containers::images::{PREFIX_VARIABLE, PUBLIC, made_here, prefix, published};
use harness::cluster::containers::stale;
use harness::cluster::kind::archive::{OneBinary, image_archive};
use harness::cluster::kind::engine::{Program, engine};
use harness::cluster::kind::node_image::has_image;
use std::time::Duration;

/// An image of a hundred megabytes takes a few seconds.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);

/// The images of these components: what the engine has, else what can be pulled, else made from binaries.
///
/// # Errors
/// The engine does not answer, or an image can neither be pulled nor made.
pub async fn images(wanted: &[Wanted], sources: &Sources) -> anyhow::Result<Images> {
    let engine = engine();
    let prefix = prefix();
    let mut images = Images::default();
    for wanted in wanted {
        let image = image(&engine, prefix.as_deref(), *wanted, sources).await?;
        images.0.insert(wanted.file_name(), image);
    }
    Ok(images)
}

async fn image(engine: &Program, prefix: Option<&str>, wanted: Wanted, sources: &Sources) -> anyhow::Result<String> {
    let (published, made_here) = (published(prefix.unwrap_or(PUBLIC), wanted), made_here(wanted));
    if has_image(engine, &published).await? {
        return Ok(published);
    }
    // Who names a registry wants its images.
    if prefix.is_none() && has_image(engine, &made_here).await? {
        return Ok(made_here);
    }
    eprintln!("pulling {published}");
    match engine.output(&["pull", "--quiet", &published]).await {
        Ok(_) => Ok(published),
        Err(error) if prefix.is_some() => Err(error).with_context(|| {
            format!("no image of {wanted}: {published} is not here and cannot be pulled from {PREFIX_VARIABLE}")
        }),
        Err(error) if !cfg!(target_os = "linux") => Err(error).with_context(|| {
            format!("no image of {wanted}: {published} is not here and cannot be pulled; {PREFIX_VARIABLE} names another registry")
        }),
        Err(error) => {
            eprintln!("{error}");
            make(engine, wanted, &made_here, sources).await?;
            Ok(made_here)
        }
    }
}

/// Makes an image of the binary that processes would run.
async fn make(engine: &Program, wanted: Wanted, image: &str, sources: &Sources) -> anyhow::Result<()> {
    let obtained = binaries::obtain(&[wanted], sources, &Terminal::new())?;
    let binary = obtained.path(wanted).with_context(|| format!("{wanted} was not obtained"))?;
    let name = wanted.name();
    let archive = image_archive(&OneBinary { image, name, entrypoint: &[name] }, binary)?;
    engine.piped(&["load"], &archive, LOAD_TIMEOUT).await?;
    eprintln!("made {image} from {}", binary.display());
    Ok(())
}

/// Removes the containers and networks of processes that are gone, and returns of how many cases.
///
/// # Errors
/// The engine does not answer.
pub async fn sweep() -> anyhow::Result<usize> {
    let engine = engine();
    let stale = stale::stale(&engine).await?;
    for left in &stale {
        stale::remove(&engine, &left.case).await?;
        println!("removed {} ({} containers and a network)", left.case, left.containers);
    }
    Ok(stale.len())
}

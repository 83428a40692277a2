//! A duplicate as a lane chart: one lane per client, server and kind of object, time from left to right in the order of
//! revisions.

use super::finish::clock;
use super::violation::{Claim, Detail, Duplicate, Violation};
use crate::gates::AllocatorMode;
use std::fmt::Write;

const LANE_HEIGHT: usize = 56;
const LEFT: usize = 210;
const STEP: usize = 150;
const TOP: usize = 64;

/// One mark on one lane.
struct Mark {
    lane: usize,
    /// Marks stand in this order; equal places share a column.
    place: (i64, u8),
    label: String,
    color: &'static str,
}

/// The lane chart of a duplicate, a complete SVG document without references to anything else; `None` for violations of
/// other kinds.
pub fn chart(violation: &Violation) -> Option<String> {
    let Detail::Duplicate(duplicate) = &violation.detail else { return None };
    Some(draw(duplicate))
}

fn draw(duplicate: &Duplicate) -> String {
    let claims = [&duplicate.first, &duplicate.second];
    let mut lanes: Vec<String> = Vec::new();
    let mut marks = Vec::new();
    let mut lane = |name: String| {
        lanes.iter().position(|it| *it == name).unwrap_or_else(|| {
            lanes.push(name);
            lanes.len() - 1
        })
    };
    for claim in claims {
        lane(client_lane(claim));
    }
    for claim in claims {
        lane(server_lane(claim));
    }
    let bitmap = lane("bitmap".to_string());
    let ip_address = lane("IPAddress".to_string());
    let service = lane("Services".to_string());
    for (claim, color) in claims.into_iter().zip(["#1f6feb", "#c2410c"]) {
        let locks = &claim.locks;
        let name = &claim.owner.service;
        let at = claim.revision;
        let dynamic = claim.owner.made_by.is_some_and(|it| it.dynamic);
        let asks = if dynamic { "asks for any address" } else { "asks for the address" };
        let took = claim.owner.made_by.map_or("no recorded call".to_string(), |it| {
            format!("{asks}, {} to {}", clock(it.invoked), clock(it.returned))
        });
        let mut mark = |lane: usize, place: (i64, u8), label: String| marks.push(Mark { lane, place, label, color });
        mark(lane_of(&lanes, &client_lane(claim)), (at, 0), took);
        mark(lane_of(&lanes, &server_lane(claim)), (at, 1), reads(claim));
        if locks.bit_revision > 0 {
            let set = if locks.bit { "bit set" } else { "bit cleared" };
            mark(bitmap, (locks.bit_revision, 0), format!("{set}, revision {}", locks.bit_revision));
        }
        if locks.ip_address_revision > 0 {
            let what = match (&locks.parent, locks.ip_address) {
                (Some(parent), true) => format!("names {parent}"),
                (None, true) => "names no Service".to_string(),
                (_, false) => "removed".to_string(),
            };
            mark(ip_address, (locks.ip_address_revision, 0), format!("{what}, revision {}", locks.ip_address_revision));
        }
        mark(service, (at, 2), format!("{name}, revision {at}, {}", clock(claim.at)));
    }
    if let Some(ended) = duplicate.ended {
        marks.push(Mark {
            lane: service,
            place: (ended, 0),
            label: format!("ends, revision {ended}"),
            color: "#57606a",
        });
    }
    render(&format!("{} belongs to two Services", duplicate.ip), &lanes, &marks)
}

fn lane_of(lanes: &[String], name: &str) -> usize {
    lanes.iter().position(|it| it == name).unwrap_or(0)
}

fn client_lane(claim: &Claim) -> String {
    claim.owner.made_by.map_or("no client".to_string(), |it| format!("client {}", it.client))
}

fn server_lane(claim: &Claim) -> String {
    claim.owner.made_by.map_or("no server".to_string(), |it| {
        let mode = it.mode.map_or("mode unknown".to_string(), |mode| mode.to_string());
        format!("{} ({mode})", it.server)
    })
}

/// What the server looks at before it gives an address out.
fn reads(claim: &Claim) -> String {
    let locks = &claim.locks;
    match claim.owner.made_by.and_then(|it| it.mode) {
        None => "passes by every lock".to_string(),
        Some(AllocatorMode::Bitmap) => format!("reads the bitmap (revision {})", locks.bitmap_revision),
        Some(AllocatorMode::IpAddress) => "reads IPAddresses".to_string(),
        Some(AllocatorMode::DualWrite) => format!("reads both (bitmap {})", locks.bitmap_revision),
    }
}

fn render(title: &str, lanes: &[String], marks: &[Mark]) -> String {
    let mut places: Vec<(i64, u8)> = marks.iter().map(|mark| mark.place).collect();
    places.sort_unstable();
    places.dedup();
    let width = LEFT + STEP * (places.len() + 1);
    let height = TOP + LANE_HEIGHT * lanes.len() + 16;
    let mut svg = String::new();
    let out = &mut svg;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(out, r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##);
    let _ = writeln!(out, r#"<text x="16" y="28" font-size="16" font-weight="bold">{}</text>"#, escape(title));
    for (index, lane) in lanes.iter().enumerate() {
        let y = TOP + LANE_HEIGHT * index + LANE_HEIGHT / 2;
        let _ = writeln!(out, r##"<text x="16" y="{}" fill="#24292f">{}</text>"##, y + 4, escape(lane));
        let _ = writeln!(out, r##"<line x1="{LEFT}" y1="{y}" x2="{}" y2="{y}" stroke="#d0d7de"/>"##, width - 16);
    }
    for mark in marks {
        let column = places.iter().position(|place| *place == mark.place).unwrap_or(0);
        let x = LEFT + 24 + STEP * column;
        let y = TOP + LANE_HEIGHT * mark.lane + LANE_HEIGHT / 2;
        let _ = writeln!(out, r#"<circle cx="{x}" cy="{y}" r="6" fill="{}"/>"#, mark.color);
        for (line, words) in wrap(&mark.label).iter().enumerate() {
            let (x, y) = (x + 10, y - 8 + 13 * line);
            let _ =
                writeln!(out, r#"<text x="{x}" y="{y}" fill="{}" font-size="11">{}</text>"#, mark.color, escape(words));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Lines of at most some 22 characters, broken at spaces.
fn wrap(label: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in label.split(' ') {
        match lines.last_mut().filter(|line| line.len() + word.len() < 22) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_string()),
        }
    }
    lines
}

/// Text for an SVG element; characters XML does not allow become U+FFFD.
fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, character| {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
        out
    })
}

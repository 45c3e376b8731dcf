//! Writes the few SVG elements that a chart needs. Coordinates are rounded to a tenth of a pixel.

use std::fmt::Write;

/// Which point of a text stands at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Font<'a> {
    pub(super) size: f64,
    pub(super) weight: u32,
    pub(super) colour: &'a str,
}

impl Font<'_> {
    /// An estimate of a text's width, on the wide side because fonts differ.
    pub(super) fn width(&self, text: &str) -> f64 {
        let letter = if self.weight >= 600 { 0.58 } else { 0.54 };
        text.chars().count() as f64 * self.size * letter
    }
}

/// A drawing, to which elements are added.
#[derive(Debug, Default)]
pub(super) struct Drawing(String);

impl Drawing {
    /// Adds an element as it is given.
    pub(super) fn raw(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    /// Adds a straight line; `style` holds its other attributes.
    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
        self.raw(&format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {style}/>"#));
    }

    /// Adds a line through points.
    pub(super) fn polyline(&mut self, points: &[(f64, f64)], style: &str) {
        let mut list = String::new();
        for (x, y) in points {
            // Writing to a string cannot fail.
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        self.raw(&format!(r#"<polyline points="{}" fill="none" {style}/>"#, list.trim_end()));
    }

    /// Adds a disc with a white rim, which sets it off from its line.
    pub(super) fn disc(&mut self, (x, y): (f64, f64), radius: f64, colour: &str) {
        let colour = escape(colour);
        self.raw(&format!(
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{colour}" stroke="#ffffff" stroke-width="2"/>"##
        ));
    }

    /// Adds a text with its baseline at `y`.
    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, font: Font, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let Font { size, weight, colour } = font;
        let colour = escape(colour);
        let text = escape(text);
        self.raw(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}">{text}</text>"#
        ));
    }

    /// The drawing as text.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Escapes a text for use in an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

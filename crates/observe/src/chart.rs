//! Charts of losses over wall-clock time or over bytes, as one self-contained SVG: no script, no
//! font file, on a white card.

mod axis;
mod labels;
mod svg;

use axis::Axis;
use labels::Area;
use svg::{Anchor, Drawing, Font};

/// A chart to draw.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The first line above the curves.
    pub title: String,
    /// The second line above the curves.
    pub subtitle: String,
    /// The curves to compare.
    pub curves: Vec<Curve>,
    /// A loss to reach. The chart marks where each curve reaches it, and by which factor the first
    /// curve leads.
    pub target: Option<f64>,
    /// What the horizontal axis shows.
    pub across: Across,
}

/// What the horizontal axis shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Across {
    /// Wall-clock time since the start.
    #[default]
    Seconds,
    /// Bytes, on a logarithmic axis if they differ much, as they do between codecs.
    Megabytes,
}

impl Across {
    fn axis(self, values: &[f64]) -> Axis {
        match self {
            Self::Seconds => Axis::from_zero(values.iter().copied().fold(0.0, f64::max), PLOT.left, PLOT.right),
            Self::Megabytes => Axis::around(values, PLOT.left, PLOT.right),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Seconds => "wall-clock time (seconds)",
            Self::Megabytes => "bytes of all workers, both ways (MB)",
        }
    }

    /// A value with about three digits.
    fn text(self, value: f64) -> String {
        let decimals = if value < 1.0 { 2 } else { usize::from(value < 100.0) };
        let unit = match self {
            Self::Seconds => "s",
            Self::Megabytes => "MB",
        };
        format!("{value:.decimals$} {unit}")
    }

    fn lead(self, times: f64) -> String {
        match self {
            Self::Seconds => format!("{times:.1}× sooner"),
            Self::Megabytes => format!("{times:.1}× fewer"),
        }
    }
}

/// A loss over time or bytes.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// The curve's name in the picture.
    pub label: String,
    /// A CSS colour.
    pub colour: String,
    /// Seconds since the start, or megabytes so far, and the loss then, in order. Points that are
    /// not finite are not drawn.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Where the curve is first at or below `target`: seconds or megabytes, interpolated linearly
    /// between points.
    pub fn reaches(&self, target: f64) -> Option<f64> {
        let points = self.finite_points();
        let after = points.iter().position(|(_, loss)| *loss <= target)?;
        let (time, loss) = points[after];
        let Some((time_before, loss_before)) = after.checked_sub(1).map(|before| points[before]) else {
            return Some(time);
        };
        Some(time_before + (time - time_before) * (loss_before - target) / (loss_before - loss))
    }

    fn finite_points(&self) -> Vec<(f64, f64)> {
        self.points.iter().copied().filter(|(time, loss)| time.is_finite() && loss.is_finite()).collect()
    }
}

/// The size of the chart, in pixels as all sizes here.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
/// Where the curves are drawn.
const PLOT: Area = Area { left: 76.0, top: 112.0, right: 820.0, bottom: 474.0 };
/// The height of the foot: the lowest part of the plot, which curves leave free. The times at which
/// they reach the target stand there, in rows.
const FOOT: f64 = 58.0;
/// The height of a row of the foot.
const FOOT_ROW: f64 = 20.0;
/// How many values the loss axis marks, about.
const LOSS_TICKS: usize = 7;

const INK: &str = "#1f2937";
const GREY: &str = "#6b7280";
const TITLE: Font = Font { size: 22.0, weight: 700, colour: INK };
const SUBTITLE: Font = Font { size: 14.0, weight: 400, colour: GREY };
const TICK: Font = Font { size: 13.0, weight: 400, colour: GREY };

impl Chart {
    /// The chart as an SVG document.
    pub fn to_svg(&self) -> String {
        let target = self.target.filter(|target| target.is_finite());
        let arrivals = target.map(|target| self.arrivals(target)).unwrap_or_default();
        let foot = match arrivals.len() {
            0 => 0.0,
            1 | 2 => FOOT,
            _ => FOOT + FOOT_ROW,
        };
        let curves: Vec<Vec<(f64, f64)>> = self.curves.iter().map(Curve::finite_points).collect();
        let losses: Vec<f64> = curves.iter().flatten().map(|(_, loss)| *loss).chain(target).collect();
        let times = self.across.axis(&curves.iter().flatten().map(|(time, _)| *time).collect::<Vec<_>>());
        let losses = Axis::around(&losses, PLOT.bottom, PLOT.top).with_room_below(foot).up_to_a_tick(LOSS_TICKS);
        let pixels: Vec<Vec<(f64, f64)>> = (curves.iter())
            .map(|curve| curve.iter().map(|(time, loss)| (times.pixel(*time), losses.pixel(*loss))).collect())
            .collect();

        let mut drawing = Drawing::default();
        self.draw_card(&mut drawing);
        draw_axes(&mut drawing, self.across, &times, &losses);
        // The uppermost row of the foot stays empty, so a curve's name may use it.
        let mut taken = vec![Area { top: PLOT.bottom - (foot - FOOT_ROW).max(0.0), ..PLOT }];
        if let Some(target) = target {
            taken.extend(draw_target(&mut drawing, target, losses.pixel(target)));
        }
        for (curve, points) in self.curves.iter().zip(&pixels) {
            draw_curve(&mut drawing, curve, points);
        }
        if let Some(target) = target {
            taken.extend(draw_arrivals(&mut drawing, self.across, &arrivals, &times, losses.pixel(target)));
        }
        self.draw_labels(&mut drawing, &pixels, taken);
        drawing.raw("</g>\n</svg>");
        drawing.finish()
    }

    /// Where each curve reaches the target, the earliest first.
    fn arrivals(&self, target: f64) -> Vec<(f64, &Curve)> {
        let reached = self.curves.iter().filter_map(|curve| Some((curve.reaches(target)?, curve)));
        let mut arrivals: Vec<(f64, &Curve)> = reached.collect();
        arrivals.sort_by(|one, other| one.0.total_cmp(&other.0));
        arrivals
    }

    fn draw_card(&self, drawing: &mut Drawing) {
        let title = svg::escape(&self.title);
        let subtitle = svg::escape(&self.subtitle);
        drawing.raw(&format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">
<title>{title}</title>
<desc>{subtitle}</desc>
<rect x="0.5" y="0.5" width="{}" height="{}" rx="14" fill="#ffffff" stroke="#e5e7eb"/>
<g font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif">"##,
            WIDTH - 1.0,
            HEIGHT - 1.0
        ));
        drawing.text((28.0, 44.0), Anchor::Start, TITLE, &self.title);
        drawing.text((28.0, 69.0), Anchor::Start, SUBTITLE, &self.subtitle);
    }

    fn draw_labels(&self, drawing: &mut Drawing, pixels: &[Vec<(f64, f64)>], mut taken: Vec<Area>) {
        let page = Area { left: PLOT.left + 8.0, top: PLOT.top - 8.0, right: WIDTH - 10.0, bottom: PLOT.bottom };
        for (index, curve) in self.curves.iter().enumerate() {
            let font = Font { size: 15.0, weight: 700, colour: &curve.colour };
            if let Some(area) = labels::place(index, font.width(&curve.label), pixels, &taken, &page) {
                drawing.text((area.left, area.bottom - 4.0), Anchor::Start, font, &curve.label);
                taken.push(area);
            }
        }
    }
}

fn draw_axes(drawing: &mut Drawing, across: Across, times: &Axis, losses: &Axis) {
    for (value, label) in losses.ticks(LOSS_TICKS) {
        let y = losses.pixel(value);
        drawing.line((PLOT.left, y), (PLOT.right, y), r##"stroke="#eef0f3""##);
        drawing.text((PLOT.left - 10.0, y + 4.5), Anchor::End, TICK, &label);
    }
    for (value, label) in times.ticks(9) {
        let x = times.pixel(value);
        drawing.line((x, PLOT.bottom), (x, PLOT.bottom + 5.0), r##"stroke="#9ca3af""##);
        drawing.text((x, PLOT.bottom + 21.0), Anchor::Middle, TICK, &label);
    }
    drawing.line((PLOT.left, PLOT.bottom), (PLOT.right, PLOT.bottom), r##"stroke="#9ca3af""##);
    let middle = (PLOT.left + PLOT.right) / 2.0;
    drawing.text((middle, PLOT.bottom + 46.0), Anchor::Middle, TICK, across.label());
    drawing.text((PLOT.left - 10.0, PLOT.top - 18.0), Anchor::End, Font { weight: 600, ..TICK }, "loss");
}

/// Draws the dashed line of the target, and its name in the right margin. Returns the areas that
/// they take.
fn draw_target(drawing: &mut Drawing, target: f64, y: f64) -> [Area; 2] {
    drawing.line((PLOT.left, y), (PLOT.right, y), r##"stroke="#6b7280" stroke-width="1.5" stroke-dasharray="6 5""##);
    let digits = format!("{target:.3}");
    let text = format!("target {}", digits.trim_end_matches('0').trim_end_matches('.'));
    let font = Font { weight: 600, ..TICK };
    drawing.text((PLOT.right + 9.0, y + 4.5), Anchor::Start, font, &text);
    let name = Area { left: PLOT.right, top: y - 9.0, right: PLOT.right + 9.0 + font.width(&text), bottom: y + 9.0 };
    [name, Area { top: y - 3.0, bottom: y + 3.0, ..PLOT }]
}

fn draw_curve(drawing: &mut Drawing, curve: &Curve, points: &[(f64, f64)]) {
    let colour = svg::escape(&curve.colour);
    let style = format!(r#"stroke="{colour}" stroke-width="2.75" stroke-linejoin="round" stroke-linecap="round""#);
    if points.len() > 1 {
        drawing.polyline(points, &style);
    }
    if let Some(end) = points.last() {
        drawing.disc(*end, 4.5, &curve.colour);
    }
}

/// Marks where curves reach the target. Writes the values in the foot, and by which factor the
/// first curve leads. Returns the areas that the marks take above the foot.
fn draw_arrivals(
    drawing: &mut Drawing,
    across: Across,
    arrivals: &[(f64, &Curve)],
    times: &Axis,
    target_y: f64,
) -> Vec<Area> {
    let base = PLOT.bottom - 18.0;
    let mut taken = Vec::new();
    for (index, (seconds, curve)) in arrivals.iter().enumerate() {
        let x = times.pixel(*seconds);
        let font = Font { size: 15.0, weight: 700, colour: &curve.colour };
        let text = across.text(*seconds);
        // The first value stands left of its line if it fits there, the last one right of its line,
        // and those between a row higher.
        let fits_left = x - font.width(&text) - 8.0 > PLOT.left;
        let (at, anchor) = match index {
            0 if fits_left => ((x - 8.0, base + 5.0), Anchor::End),
            _ if index + 1 == arrivals.len() => ((x + 8.0, base + 5.0), Anchor::Start),
            _ => ((x + 8.0, base - 9.0 - FOOT_ROW), Anchor::Start),
        };
        let outer = index == 0 || index + 1 == arrivals.len();
        let bottom = if outer { PLOT.bottom } else { at.1 };
        let colour = svg::escape(&curve.colour);
        let drop = format!(r#"stroke="{colour}" stroke-width="1.5" stroke-dasharray="2 3""#);
        drawing.line((x, target_y), (x, bottom), &drop);
        drawing.disc((x, target_y), 6.0, &curve.colour);
        taken.push(Area { left: x - 6.0, top: target_y - 6.0, right: x + 6.0, bottom });
        drawing.text(at, anchor, font, &text);
    }
    if let [(first, winner), .., (last, _)] = arrivals {
        let text = across.lead(last / first);
        draw_lead(drawing, (times.pixel(*first), times.pixel(*last)), base, &text, winner);
    }
    taken
}

/// Draws an arrow from the last arrival to the first, with the factor by which the first leads.
fn draw_lead(drawing: &mut Drawing, (first, last): (f64, f64), y: f64, text: &str, winner: &Curve) {
    let font = Font { size: 15.0, weight: 700, colour: &winner.colour };
    if last - first < font.width(text) + 24.0 || !last.is_finite() {
        return;
    }
    let colour = svg::escape(&winner.colour);
    let style = format!(r#"stroke="{colour}" stroke-width="1.5" stroke-linecap="round""#);
    let tip = first + 6.0;
    let tail = last - 6.0;
    drawing.line((tip, y), (tail, y), &style);
    drawing.line((tip, y), (tip + 6.0, y - 4.0), &style);
    drawing.line((tip, y), (tip + 6.0, y + 4.0), &style);
    drawing.text(((first + last) / 2.0, y - 9.0), Anchor::Middle, font, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn falling(label: &str, colour: &str, seconds: f64, noise: f64) -> Curve {
        let mut random = types::SplitMix64::new(seconds as u64);
        let loss = |part: f64, wobble: f64| 0.50 + 0.19 * (-3.2 * part).exp() + noise * wobble;
        let points = (0..=60).map(|step| f64::from(step) / 60.0);
        let points = points.map(|part| (part * seconds, loss(part, random.unit() - 0.5))).collect();
        Curve { label: label.to_owned(), colour: colour.to_owned(), points }
    }

    /// A chart of two made-up curves.
    fn example() -> Chart {
        Chart {
            title: "Slack 3 reaches the same loss 1.8× sooner".to_owned(),
            subtitle: "held-out log-loss, 4 workers & 2 servers, in each clock one worker <3× slower>".to_owned(),
            curves: vec![
                falling("slack 3", "#0f766e", 9.3, 0.002),
                falling("lock step (slack 0)", "#c2410c", 16.7, 0.002),
            ],
            target: Some(0.515),
            across: Across::Seconds,
        }
    }

    /// Checks that every element is closed in order, and returns the number of elements.
    fn elements(svg: &str) -> usize {
        let mut open = Vec::new();
        let mut count = 0;
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("a tag ends");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else {
                count += 1;
                assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
        count
    }

    fn check(chart: &Chart) -> String {
        let svg = chart.to_svg();
        assert!(elements(&svg) > 10);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        svg
    }

    #[test]
    fn chart_is_well_formed_and_names_the_lead() {
        let svg = check(&example());
        for text in ["1.8× sooner", "target 0.515", "slack 3", "&lt;3× slower&gt;", "4 workers &amp; 2 servers"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn chart_over_bytes_has_units_of_bytes() {
        let title = "Bytes".to_owned();
        let svg = check(&Chart { title, across: Across::Megabytes, ..example() });
        for text in ["1.8× fewer", "both ways (MB)", " MB</text>"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("seconds") && !svg.contains("sooner"), "{svg}");
        let curve = Curve { points: vec![(1.0, 2.0), (2_000.0, 1.0)], ..falling("a", "red", 1.0, 0.0) };
        check(&Chart { across: Across::Megabytes, curves: vec![curve], ..Chart::default() });
    }

    #[test]
    fn chart_is_well_formed_without_points_with_one_and_with_points_that_are_not_finite() {
        let curve = |points: &[(f64, f64)]| Curve { points: points.to_vec(), ..falling("a", "red", 1.0, 0.0) };
        let nonsense = [(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 0.6)];
        for points in [&[][..], &[(0.0, 0.5)], &[(1.0, 0.0)], &[(3.0, 0.7), (3.0, 0.7)], &nonsense] {
            for target in [None, Some(0.5), Some(f64::NAN)] {
                check(&Chart { curves: vec![curve(points), curve(&[])], target, ..Chart::default() });
            }
        }
        check(&Chart::default());
    }

    #[test]
    fn curve_reaches_the_target_between_its_points_the_first_time() {
        let curve = |points: &[(f64, f64)]| Curve { points: points.to_vec(), ..Curve::default() };
        let falling = curve(&[(0.0, 1.0), (10.0, 0.5), (20.0, 0.9), (30.0, 0.4)]);
        assert_eq!(falling.reaches(0.75), Some(5.0));
        assert_eq!(falling.reaches(1.5), Some(0.0));
        assert_eq!(falling.reaches(0.1), None);
    }

    #[test]
    fn chart_is_well_formed_with_losses_over_many_powers_of_ten() {
        let points = (0..100).map(|step| (f64::from(step), 100.0 * (-0.1 * f64::from(step)).exp())).collect();
        let curve = Curve { label: "steep".to_owned(), colour: "#000".to_owned(), points };
        check(&Chart { curves: vec![curve], target: Some(0.1), ..Chart::default() });
    }
}

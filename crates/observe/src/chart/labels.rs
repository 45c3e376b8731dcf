//! Places the names of curves: beside the curve's end if there is room, else along the curve, clear
//! of everything else on the page.

/// A rectangle on the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    fn overlaps(&self, other: &Area) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn within(&self, outer: &Area) -> bool {
        outer.left <= self.left && self.right <= outer.right && outer.top <= self.top && self.bottom <= outer.bottom
    }

    fn moved(&self, x: f64, y: f64) -> Area {
        Area { left: self.left + x, top: self.top + y, right: self.right + x, bottom: self.bottom + y }
    }

    fn grown(&self, by: f64) -> Area {
        Area { left: self.left - by, top: self.top - by, right: self.right + by, bottom: self.bottom + by }
    }

    fn reaching(&self, (x, y): (f64, f64)) -> Area {
        Area { left: self.left.min(x), top: self.top.min(y), right: self.right.max(x), bottom: self.bottom.max(y) }
    }

    /// Whether the segment touches the area. Clips the segment to the area's width, then to its
    /// height, and checks whether a part is left (Liang and Barsky, 1984).
    fn touches(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        let mut enter = 0f64;
        let mut leave = 1f64;
        for (start, step, low, high) in
            [(from.0, to.0 - from.0, self.left, self.right), (from.1, to.1 - from.1, self.top, self.bottom)]
        {
            if step == 0.0 {
                if !(low..=high).contains(&start) {
                    return false;
                }
                continue;
            }
            let one = (low - start) / step;
            let other = (high - start) / step;
            enter = enter.max(one.min(other));
            leave = leave.min(one.max(other));
        }
        enter <= leave
    }
}

/// The distance of a name from the point of its curve that it stands beside, in pixels.
const GAP: f64 = 9.0;
/// The least distance of a name from the rest of its curve, in pixels.
const OWN_CLEARANCE: f64 = 5.0;
/// The height of a name, in pixels.
const HEIGHT: f64 = 18.0;
/// Distances of a name from everything else, in pixels: the first that can be kept is used.
const CLEARANCES: [f64; 4] = [26.0, 18.0, 10.0, 4.0];

/// A place `width` wide for the name of the curve `own`, an index into `curves`, each a line of
/// pixels.
///
/// The place is on the page, near its curve, and as far as possible from the other curves and from
/// the areas that are `taken`. If the page is too crowded, it is beside the curve's end. A curve
/// without points has no place.
pub(super) fn place(own: usize, width: f64, curves: &[Vec<(f64, f64)>], taken: &[Area], page: &Area) -> Option<Area> {
    let tip = *curves[own].last()?;
    let end = beside(tip, width);
    // Candidates: first beside the end, or a line above or below it. Then along the curve, from its
    // middle outwards: above to the right, where a falling curve leaves room, and below to the
    // left.
    let mut along: Vec<(f64, f64)> = curves[own].windows(2).flat_map(|pair| between(pair[0], pair[1])).collect();
    let middle = (curves[own][0].0 + tip.0) / 2.0;
    let from_middle = |point: &(f64, f64)| (point.0 - middle).abs();
    // Not near the start: all curves start at the same loss, so they are hard to tell apart there.
    along.retain(|point| from_middle(point) <= 0.4 * (tip.0 - curves[own][0].0));
    along.sort_by(|one, other| from_middle(one).total_cmp(&from_middle(other)));
    let shifts = [(0.0, 0.0), (0.0, -HEIGHT), (0.0, HEIGHT), (-width - GAP, HEIGHT)];
    let mut candidates: Vec<_> = shifts.iter().map(|(x, y)| (tip, end.moved(*x, *y))).collect();
    for point in along {
        let right = beside(point, width);
        candidates.push((point, right.moved(0.0, -HEIGHT / 2.0 - OWN_CLEARANCE)));
        candidates.push((point, right.moved(-width - 2.0 * GAP, HEIGHT / 2.0 + OWN_CLEARANCE)));
    }

    let touched = |area: &Area, curve: &[(f64, f64)]| curve.windows(2).any(|pair| area.touches(pair[0], pair[1]));
    let clear = |point: (f64, f64), area: &Area, clearance: f64| {
        // No other curve may pass between a name and its curve.
        let others = area.grown(clearance).reaching(point);
        area.within(page)
            && !touched(&area.grown(OWN_CLEARANCE - 1.0), &curves[own])
            && !taken.iter().any(|other| area.grown(clearance).overlaps(other))
            && !curves.iter().enumerate().any(|(index, curve)| index != own && touched(&others, curve))
    };
    let clearest =
        CLEARANCES.iter().find_map(|clearance| candidates.iter().find(|(point, area)| clear(*point, area, *clearance)));
    Some(clearest.map_or(end, |(_, area)| *area))
}

/// The place to the right of a point.
fn beside((x, y): (f64, f64), width: f64) -> Area {
    Area { left: x + GAP, top: y - HEIGHT / 2.0, right: x + GAP + width, bottom: y + HEIGHT / 2.0 }
}

/// Points of a segment, at most ten pixels apart, with its start and without its end.
fn between(from: (f64, f64), to: (f64, f64)) -> impl Iterator<Item = (f64, f64)> {
    let steps = ((to.0 - from.0).hypot(to.1 - from.1) / 10.0).ceil().max(1.0) as usize;
    (0..steps).map(move |step| {
        let part = step as f64 / steps as f64;
        (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Area = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 200.0 };

    #[test]
    fn touches_finds_segments_that_cross_the_area_with_both_ends_outside() {
        let area = Area { left: 10.0, top: 10.0, right: 20.0, bottom: 20.0 };
        for (from, to, touches) in [
            ((0.0, 15.0), (30.0, 15.0), true),
            ((15.0, 0.0), (15.0, 30.0), true),
            ((0.0, 0.0), (30.0, 30.0), true),
            ((12.0, 12.0), (13.0, 13.0), true),
            ((0.0, 25.0), (30.0, 25.0), false),
            ((0.0, 15.0), (9.0, 15.0), false),
            ((0.0, 19.0), (19.0, 38.0), false),
        ] {
            assert_eq!(area.touches(from, to), touches, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn place_is_beside_the_end_of_the_curve_if_there_is_room() {
        let curves = [vec![(10.0, 20.0), (200.0, 100.0)]];
        let area = place(0, 80.0, &curves, &[], &PAGE).unwrap();
        assert_eq!((area.left, area.top), (209.0, 91.0));
    }

    #[test]
    fn names_of_curves_that_end_together_do_not_overlap() {
        let curves = [vec![(10.0, 20.0), (200.0, 100.0)], vec![(10.0, 60.0), (200.0, 104.0)]];
        let first = place(0, 80.0, &curves, &[], &PAGE).unwrap();
        let second = place(1, 80.0, &curves, &[first], &PAGE).unwrap();
        assert!(!first.overlaps(&second), "{first:?}, {second:?}");
    }

    #[test]
    fn place_moves_along_the_curve_if_the_name_does_not_fit_beside_its_end() {
        let curves = [vec![(10.0, 100.0), (100.0, 100.0), (390.0, 100.0)]];
        let area = place(0, 80.0, &curves, &[], &PAGE).unwrap();
        assert!(area.within(&PAGE) && !area.touches(curves[0][0], curves[0][2]));
    }

    #[test]
    fn curve_without_points_has_no_place() {
        assert!(place(0, 80.0, &[vec![]], &[], &PAGE).is_none());
    }
}

//! Decodes any bytes as the leases of a registry or a manifest. They are refused, or they make an
//! allocator that works and grants every lease.
#![no_main]

use inputs::number;
use lease::{FinishedLeases, GrantReply, GrantTerms, LeaseAllocator, WorkReport};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use types::{Clock, Source, Span, Time};
use wire::{Field, Reader};

/// The most leases of a run that the target finishes.
const FEW: u64 = 1000;

/// The encoding of an allocator after random steps, with up to three bytes changed.
fn bytes_of_a_run(input: &mut Unstructured) -> Result<Vec<u8>> {
    let shuffle = if input.arbitrary()? { Some(number(input)?) } else { None };
    let terms =
        GrantTerms { ranges: input.int_in_range(0..=40)?, epochs: input.int_in_range(0..=3)?, shuffle, per_clock: 8 };
    let mut allocator = LeaseAllocator::new(terms).expect("few leases");
    for _ in 0..input.int_in_range(0..=30)? {
        step(&mut allocator, input)?;
    }
    let mut bytes = Vec::new();
    allocator.put(&mut bytes);
    for _ in 0..input.int_in_range(0..=3)? {
        let at = input.choose_index(bytes.len())?;
        bytes[at] = input.arbitrary()?;
    }
    Ok(bytes)
}

/// A random call of the allocator.
fn step(allocator: &mut LeaseAllocator, input: &mut Unstructured) -> Result<()> {
    let source = Source(input.int_in_range(0..=3)?);
    match input.int_in_range(0..=5)? {
        0 | 1 => drop(allocator.grant(Time(number(input)?), source, number(input)?)),
        2 | 3 => {
            let leases = [number(input)?, input.int_in_range(0..=40)?, input.int_in_range(0..=40)?];
            let work = WorkReport { examples: number(input)?, busy: Span(number(input)?) };
            drop(allocator.commit(source, &leases, Clock(number(input)?), work));
        }
        4 => drop(allocator.expel(source)),
        _ => allocator.settle(Clock(number(input)?)),
    }
    Ok(())
}

/// Decodes an allocator, uses it, and checks that it can be saved, restored and finished.
fn use_it(bytes: &[u8], input: &mut Unstructured) -> Result<()> {
    let Ok(mut allocator) = LeaseAllocator::get(&mut Reader(bytes), Time(0)) else { return Ok(()) };
    for _ in 0..10 {
        step(&mut allocator, input)?;
        let now = allocator.committed();
        let before = allocator.committed_before(Clock(number(input)?));
        assert!(before.is_none_or(|before| before.count() <= now.count() && before.through() <= now.through()));
    }
    let mut again = Vec::new();
    allocator.put(&mut again);
    let Ok(restored) = LeaseAllocator::get(&mut Reader(&again), Time(0)) else { return Ok(()) };
    assert_eq!(restored.committed(), allocator.committed());
    let terms = allocator.terms();
    if terms.leases().is_ok_and(|leases| leases <= FEW) {
        let mut resumed = LeaseAllocator::resume(terms, &allocator.committed()).expect("the allocator's own leases");
        while let GrantReply::Leases { leases, .. } = resumed.grant(Time(0), Source(1), 7) {
            let work = WorkReport { examples: 1, busy: Span(1) };
            assert_eq!(resumed.commit(Source(1), &leases, Clock(0), work).fresh, leases.len() as u64);
        }
        assert!(resumed.is_over());
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    FinishedLeases::get(&mut Reader(bytes)).ok();
    let mut input = Unstructured::new(bytes);
    use_it(bytes, &mut Unstructured::new(bytes)).ok();
    if let Ok(bytes) = bytes_of_a_run(&mut input) {
        use_it(&bytes, &mut input).ok();
    }
});

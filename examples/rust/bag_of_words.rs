//! Converts a UCI bag of words to LibSVM text on standard output. PART is train or test; WEIGHTING
//! is counts (the default) or tfidf:
//!
//! ```sh
//! cargo run --release -p slackwater-data --example bag_of_words -- DOCWORD LABELS PART [WEIGHTING]
//! ```

use data::{Weighting, bag_of_words};
use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (docword, labels, part, weighting) = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        &[docword, labels, part] | &[docword, labels, part, "counts"] => (docword, labels, part, Weighting::Counts),
        &[docword, labels, part, "tfidf"] => (docword, labels, part, Weighting::TfIdf),
        _ => return Err("usage: bag_of_words DOCWORD LABELS train|test [counts|tfidf]".into()),
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    bag_of_words(Path::new(docword), Path::new(labels), part, weighting, &mut out)?;
    Ok(out.flush()?)
}

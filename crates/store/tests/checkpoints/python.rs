//! The ordinary Python library reads what was written.

use crate::support::{Folder, JOB, python, skipped};
use std::process::Command;
use store::{Positions, Rows, Slice};

const READ: &str = "
import sys
from safetensors import safe_open
from safetensors.numpy import load_file
for path in sys.argv[1:]:
    with safe_open(path, 'numpy') as file:
        holds = file.metadata()['holds']
    tensors = load_file(path)
    print(holds, '|', ' | '.join(f'{name} {tensors[name].dtype} {tensors[name].tolist()}' for name in sorted(tensors)))
";

#[test]
fn the_python_library_reads_slices_and_residuals() {
    let interpreter = match python::interpreter() {
        Ok(interpreter) => interpreter,
        Err(why) => return skipped("reading checkpoints in Python", &why),
    };
    let folder = Folder::new();
    let writing = folder.store().begin(JOB).unwrap();
    let slice = |positions, rows, ledger: &'static [u8]| Slice {
        table: "weights".into(),
        slice: 3,
        positions,
        stride: 2,
        rows,
        ledger: ledger.into(),
    };
    let list = Positions::List([1, u64::MAX][..].into());
    let written = [
        slice(list.clone(), Rows::F32([0.5, -1.0, 1.5, 2.0][..].into()), b"\x01\xff"),
        slice(Positions::Run { first: 8, count: 1 }, Rows::F64([0.1, 1e300][..].into()), b""),
        slice(list, Rows::I64([i64::MIN, -1, 0, 1][..].into()), b"x"),
        slice(Positions::List([][..].into()), Rows::F32([][..].into()), b""),
    ];
    let mut command = Command::new(interpreter);
    command.args(["-c", READ]);
    for slice in &written {
        // Each as another process, for each slice has one name in one.
        let entry = folder.store().join(writing.name()).slice(slice).unwrap();
        command.arg(folder.path().join(writing.name().to_string()).join(entry.file.name));
    }
    let entry = writing.residuals("7", &[("a/b", b"\x02"), ("c", b"")]).unwrap();
    command.arg(folder.path().join(writing.name().to_string()).join(entry.file.name));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "slice 3 of table `weights` | ledger uint8 [1, 255] | positions uint64 [1, 18446744073709551615] | \
             rows float32 [[0.5, -1.0], [1.5, 2.0]]",
            "slice 3 of table `weights` | ledger uint8 [] | rows float64 [[0.1, 1e+300]] | run uint64 [8, 1]",
            "slice 3 of table `weights` | ledger uint8 [120] | positions uint64 [1, 18446744073709551615] | \
             rows int64 [[-9223372036854775808, -1], [0, 1]]",
            "slice 3 of table `weights` | ledger uint8 [] | positions uint64 [] | rows float32 []",
            "the residuals of worker `7` | a/b uint8 [2] | c uint8 []",
        ]
    );
}

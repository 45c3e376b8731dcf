//! The Python library `safetensors` reads the files of a checkpoint.

use crate::support::{Folder, JOB, python, skipped};
use std::process::Command;
use store::{CheckpointShard, Positions, RowNumbers};

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
fn the_python_library_reads_shards_and_residuals() {
    let interpreter = match python::interpreter() {
        Ok(interpreter) => interpreter,
        Err(why) => return skipped("reading checkpoints in Python", &why),
    };
    let folder = Folder::new();
    let writing = folder.store().begin(JOB).unwrap();
    let shard = |positions, rows, metadata: &'static [u8]| CheckpointShard {
        table: "weights".into(),
        index: 3,
        positions,
        stride: 2,
        rows,
        metadata: metadata.into(),
    };
    let list = Positions::List([1, u64::MAX][..].into());
    let written = [
        shard(list.clone(), RowNumbers::F32([0.5, -1.0, 1.5, 2.0][..].into()), b"\x01\xff"),
        shard(Positions::Run { first: 8, count: 1 }, RowNumbers::F64([0.1, 1e300][..].into()), b""),
        shard(list, RowNumbers::I64([i64::MIN, -1, 0, 1][..].into()), b"x"),
        shard(Positions::List([][..].into()), RowNumbers::F32([][..].into()), b""),
    ];
    let mut command = Command::new(interpreter);
    command.args(["-c", READ]);
    for shard in &written {
        // Each joins anew, as another process: one writer gives a shard one file name.
        let entry = folder.store().join(writing.name()).shard(shard).unwrap();
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
            "shard 3 of table `weights` | metadata uint8 [1, 255] | positions uint64 [1, 18446744073709551615] | \
             rows float32 [[0.5, -1.0], [1.5, 2.0]]",
            "shard 3 of table `weights` | metadata uint8 [] | rows float64 [[0.1, 1e+300]] | run uint64 [8, 1]",
            "shard 3 of table `weights` | metadata uint8 [120] | positions uint64 [1, 18446744073709551615] | \
             rows int64 [[-9223372036854775808, -1], [0, 1]]",
            "shard 3 of table `weights` | metadata uint8 [] | positions uint64 [] | rows float32 []",
            "the residuals of worker `7` | a/b uint8 [2] | c uint8 []",
        ]
    );
}

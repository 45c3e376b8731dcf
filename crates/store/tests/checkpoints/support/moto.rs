//! A real S3-compatible server: moto's, in a process that ends with the test process.

use super::{python, skipped};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Store, StoreSettings};

/// Serves until its standard input closes. The end of the test process closes it, however it ends.
const SERVE: &str = "
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print('%s:%d' % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
";

struct Server {
    address: SocketAddr,
    /// Holds the process's standard input open.
    _child: Child,
}

/// The server's address. Without a server, reports the skipped test and returns `None`.
pub fn address(test: &str) -> Option<SocketAddr> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    match SERVER.get_or_init(start) {
        Ok(server) => Some(server.address),
        Err(why) => {
            skipped(test, &format!("there is no S3 server here: {why}"));
            None
        }
    }
}

fn start() -> Result<Server, String> {
    let mut child = Command::new(python::interpreter()?)
        .args(["-c", SERVE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let output = child.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
    let address = line.trim().parse().map_err(|_| "it does not start".to_owned())?;
    Ok(Server { address, _child: child })
}

/// A bucket that no other test uses.
pub fn bucket(server: SocketAddr) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let bucket = format!("bucket-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    assert_eq!(request(server, "PUT", &format!("/{bucket}"), b"").0, 200);
    bucket
}

/// Settings to reach the server, with limits of 20 seconds.
pub fn settings(endpoint: &str) -> StoreSettings {
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
    ];
    StoreSettings {
        variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        modes: store::FileModes::default(),
        retry_for: Duration::from_secs(20),
        request_timeout: Duration::from_secs(20),
    }
}

/// A store in a bucket, reached at an address.
pub fn store(address: SocketAddr, bucket: &str) -> Store {
    Store::open_with(&format!("s3://{bucket}/runs/one"), &settings(&format!("http://{address}"))).unwrap()
}

/// Sends one plain HTTP request; returns status and body.
pub fn request(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(server).unwrap();
    let length = body.len();
    // The server does not check the signature, only that there is one.
    let signed = "AWS4-HMAC-SHA256 Credential=key/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
    let head = format!("Host: {server}\r\nContent-Length: {length}\r\nAuthorization: {signed}\r\nConnection: close");
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    (status, answer.split_off(end))
}

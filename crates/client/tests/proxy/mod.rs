//! A proxy between two nodes that breaks their connection at a chosen byte, in either direction.

#![allow(dead_code, reason = "not every test needs all of it")]

use net::{SharedStream, call_shared, open_shared};
use slackwater::cluster::SameHost;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// How often the proxy polls shared memory, because peers do not wake it.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_micros(100);

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the node that called to the node that listens.
    There,
    /// From the node that listens to the node that called.
    Back,
}

impl Way {
    /// The other direction.
    pub fn reverse(self) -> Self {
        match self {
            Self::There => Self::Back,
            Self::Back => Self::There,
        }
    }
}

/// When the connection breaks next.
#[derive(Default)]
enum Cuts {
    #[default]
    None,
    /// Once, when this many bytes have gone in this direction.
    At(Way, u64),
    /// `left` more times, each time after up to `span` bytes in either direction.
    Random { way: Way, at: u64, span: u64, left: u32, seed: u64 },
}

/// What the proxy's threads share.
#[derive(Default)]
struct State {
    carried: [u64; 2],
    cuts: Cuts,
    done: u64,
    /// In which directions the proxy takes bytes and drops them.
    swallows: [bool; 2],
    /// The near ends of all connections so far, and whether each has been abandoned.
    near: Vec<(TcpStream, Arc<AtomicBool>)>,
    /// How many abandoned far ends the listening node has closed.
    given_up: usize,
}

impl State {
    /// How many of `bytes` bytes to forward, and whether the connection breaks after them.
    fn carry(&mut self, way: Way, bytes: usize) -> (usize, bool) {
        if self.swallows[way as usize] {
            return (0, false);
        }
        let carried = self.carried[way as usize];
        let (cut_way, at) = match self.cuts {
            Cuts::None => return self.pass(way, bytes),
            Cuts::At(cut_way, at) | Cuts::Random { way: cut_way, at, .. } => (cut_way, at),
        };
        if cut_way != way || carried + bytes as u64 <= at {
            return self.pass(way, bytes);
        }
        let bytes = at.saturating_sub(carried) as usize;
        self.carried[way as usize] += bytes as u64;
        self.done += 1;
        self.cuts = match self.cuts {
            Cuts::Random { span, left, seed, .. } if left > 0 => self.draw(span, left - 1, seed),
            _ => Cuts::None,
        };
        (bytes, true)
    }

    fn pass(&mut self, way: Way, bytes: usize) -> (usize, bool) {
        self.carried[way as usize] += bytes as u64;
        (bytes, false)
    }

    fn draw(&self, span: u64, left: u32, seed: u64) -> Cuts {
        let seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let way = if seed >> 63 == 0 { Way::There } else { Way::Back };
        Cuts::Random { way, at: self.carried[way as usize] + (seed >> 20) % span, span, left, seed }
    }
}

/// Forwards connections from its own address to another until a test tells it to break them.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// A proxy before the node that will listen at `target`, for callers over TCP and, if so told,
    /// through shared memory. Its threads end with the test's process.
    pub fn before(target: SocketAddr, same_host: SameHost) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        if same_host == SameHost::SharedMemory {
            let door = open_shared(address).expect("a free name");
            let shared = state.clone();
            std::thread::spawn(move || {
                loop {
                    let Ok((socket, _)) = door.accept() else {
                        std::thread::sleep(LOOK_AGAIN);
                        continue;
                    };
                    let near = SharedStream::accept(socket, None).expect("one of this user's");
                    let Ok(Some(far)) = call_shared(target, None) else { continue };
                    let shared = shared.clone();
                    std::thread::spawn(move || pump_shared(near, far, &shared));
                }
            });
        }
        let shared = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().filter_map(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).expect("a socket");
                }
                let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
                let abandoned = Arc::new(AtomicBool::new(false));
                let Ok(kept) = near.try_clone() else { continue };
                shared.lock().expect("not poisoned").near.push((kept, abandoned.clone()));
                let there = (shared.clone(), abandoned.clone());
                let back = (shared.clone(), abandoned);
                std::thread::spawn(move || pump(Way::There, near, far, &there.0, &there.1));
                std::thread::spawn(move || pump(Way::Back, far_too, near_too, &back.0, &back.1));
            }
        });
        Self { address, state }
    }

    /// Breaks the connection when `bytes` more bytes have gone in direction `way`; the next byte is
    /// lost.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        let mut state = self.state.lock().expect("not poisoned");
        state.cuts = Cuts::At(way, state.carried[way as usize] + bytes);
    }

    /// Breaks the connection `times` times, each after up to `span` bytes.
    pub fn cut_at_random(&self, seed: u64, times: u32, span: u64) {
        let mut state = self.state.lock().expect("not poisoned");
        state.cuts = state.draw(span, times.saturating_sub(1), seed);
    }

    /// Cancels the breaks that are still to come.
    pub fn cut_no_more(&self) {
        self.state.lock().expect("not poisoned").cuts = Cuts::None;
    }

    /// Breaks every connection for the node that called. The listening node hears nothing, as when
    /// a host vanishes. Returns how many connections that were.
    pub fn abandon(&self) -> usize {
        let near = std::mem::take(&mut self.state.lock().expect("not poisoned").near);
        let live = near.iter().filter(|(near, _)| near.peer_addr().is_ok());
        live.map(|(near, abandoned)| {
            abandoned.store(true, Ordering::SeqCst);
            near.shutdown(Shutdown::Both).ok();
        })
        .count()
    }

    /// How many abandoned connections the listening node has closed since.
    pub fn given_up(&self) -> usize {
        self.state.lock().expect("not poisoned").given_up
    }

    /// From now on drops all bytes without closing connections.
    pub fn swallow(&self) {
        self.state.lock().expect("not poisoned").swallows = [true; 2];
    }

    /// From now on drops all bytes of one direction without closing connections.
    pub fn swallow_one_way(&self, way: Way) {
        self.state.lock().expect("not poisoned").swallows[way as usize] = true;
    }

    /// How many bytes the proxy has forwarded so far, in each direction.
    pub fn carried(&self) -> [u64; 2] {
        self.state.lock().expect("not poisoned").carried
    }

    /// How often a connection has broken.
    pub fn done(&self) -> u64 {
        self.state.lock().expect("not poisoned").done
    }
}

/// Forwards both directions through shared memory until one end is gone or the connection breaks.
fn pump_shared(mut near: SharedStream, mut far: SharedStream, state: &Mutex<State>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let there = carry_shared(Way::There, &mut near, &mut far, &mut buffer, state);
        let back = carry_shared(Way::Back, &mut far, &mut near, &mut buffer, state);
        match (there, back) {
            (Some(0), Some(0)) => {
                std::thread::sleep(LOOK_AGAIN);
                near.hear(false);
                far.hear(false);
            }
            (Some(_), Some(_)) => {}
            _ => return,
        }
    }
}

/// Forwards the bytes that are there. Returns how many, or `None` if the connection is broken.
fn carry_shared(
    way: Way,
    from: &mut SharedStream,
    to: &mut SharedStream,
    buffer: &mut [u8],
    state: &Mutex<State>,
) -> Option<usize> {
    let bytes = match from.read(buffer) {
        Ok(bytes @ 1..) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(0),
        _ => return None,
    };
    let (bytes, broken) = state.lock().expect("not poisoned").carry(way, bytes);
    let mut rest = &buffer[..bytes];
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(written) => rest = &rest[written..],
            // The ring is full, or its reader is gone.
            Err(_) => {
                std::thread::sleep(LOOK_AGAIN);
                to.hear(false);
                if to.read(&mut []).is_ok() {
                    return None;
                }
            }
        }
    }
    (!broken).then_some(bytes)
}

/// Forwards one direction of a TCP connection until one end is gone or the connection breaks.
fn pump(way: Way, mut from: TcpStream, mut to: TcpStream, state: &Mutex<State>, abandoned: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let (bytes, broken) = state.lock().expect("not poisoned").carry(way, bytes);
        if (to.write_all(&buffer[..bytes]).is_err() || broken) && !abandoned.load(Ordering::SeqCst) {
            break;
        }
    }
    if abandoned.load(Ordering::SeqCst) {
        // The far end stays as it is until its owner closes it.
        if way == Way::Back {
            state.lock().expect("not poisoned").given_up += 1;
        }
        return;
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// A free port, below the range of ports that the system gives to outgoing connections.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = (std::process::id() as u16).wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from(([127, 0, 0, 1], 12_000 + offset % 20_000));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

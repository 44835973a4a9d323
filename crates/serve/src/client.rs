//! The user of this machine who opened a connection.

use std::net::{IpAddr, SocketAddr};

/// Bytes read of the kernel's list of connections.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Returns the id of the user of this process, where [`user_of`] can compare it; `None` on systems other than
/// Linux.
pub fn own_user() -> Option<u32> {
    #[cfg(target_os = "linux")]
    return Some(rustix::process::getuid().as_raw());
    #[cfg(not(target_os = "linux"))]
    None
}

/// Returns the id of the user who opened the client end of a loopback connection, from the kernel's list of
/// connections; `None` where there is no such list, or the connection is not in it.
pub fn user_of(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open("/proc/net/tcp").ok()?.take(MAX_LIST_BYTES).read_to_string(&mut text).ok()?;
    user_in(&text, client, server)
}

/// Finds the user in lines such as `0: 0100007F:A1B2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000
/// 1000 0 ...`: the client's address, the server's, and later the user.
fn user_in(list: &str, client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let (client, server) = (written(client)?, written(server)?);
    list.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_connection = *fields.get(1)? == client && *fields.get(2)? == server;
        is_connection.then(|| fields.get(7)?.parse().ok())?
    })
}

/// Writes an address as the kernel does: its bytes as one number in native order.
fn written(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_connection_has_the_user_who_opened_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let server = listener.local_addr().expect("an address");
        let _open = TcpStream::connect(server).expect("connected");
        let (_accepted, client) = listener.accept().expect("accepted");
        assert!(own_user().is_some());
        assert_eq!(user_of(client, server), own_user());
        assert_eq!(user_of(client, SocketAddr::from(([127, 0, 0, 2], server.port()))), None);
    }

    #[test]
    fn the_other_end_of_the_same_connection_is_not_the_client() {
        let line = |local: &str, remote: &str, user: u32| {
            format!(
                "   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000  {user}        0 37929 1\n"
            )
        };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (client, server) = (written(at(40_000)).expect("IPv4"), written(at(80)).expect("IPv4"));
        let list = line(&server, &client, 0) + &line(&client, &server, 1000) + "nonsense\n";
        assert_eq!(user_in(&list, at(40_000), at(80)), Some(1000));
        assert_eq!(user_in(&list, at(40_001), at(80)), None);
    }
}

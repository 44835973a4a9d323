//! `Host` headers.

use std::net::IpAddr;

/// Whether a `Host` header names the loopback interface, at any port: a tunnel may listen on another one. A
/// foreign page whose name was made to resolve to this machine (DNS rebinding) would send its own name.
///
/// ```
/// assert!(serve::is_loopback("localhost:8080"));
/// assert!(!serve::is_loopback("example.com"));
/// ```
pub fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|letter| letter.is_ascii_digit()) { name } else { host }
    });
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_accepted() {
        for (host, expected) in [
            ("127.0.0.1:8080", true),
            ("127.0.0.2", true),
            ("localhost", true),
            ("localhost:1", true),
            ("LOCALHOST:1", true),
            ("[::1]:80", true),
            ("192.168.0.1:80", false),
            ("evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}

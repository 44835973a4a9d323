//! The arguments of `oomph exporter`.

use clap::Args;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph exporter                               for a Prometheus on this machine, at port 16674
  oomph exporter --listen 0.0.0.0:16674 --token-file /etc/oomph/token
                                               for other machines, which need the token
  oomph exporter --once                        the metrics now, for a file that node_exporter reads
  curl -s localhost:16674/metrics | grep oomph_growing

Recorders are `oomph run` and `oomph.record()`: those of this user, or of every user if run by root.
Scrape configuration, alerts and a Grafana dashboard: docs/reference/metrics.md.")]
pub(crate) struct ExporterArgs {
    /// Address and port to listen on; from other machines `/live` needs --token-file
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    #[arg(default_value = "127.0.0.1:16674", conflicts_with = "once")]
    pub(crate) listen: SocketAddr,

    /// A file with a secret that clients must send: `Authorization: Bearer SECRET`
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub(crate) token_file: Option<PathBuf>,

    /// Print the metrics to standard output, then exit
    #[arg(long)]
    pub(crate) once: bool,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let why = "an address of this machine and a port, such as 127.0.0.1:16674 or [::1]:16674";
    let mut found = text.to_socket_addrs().map_err(|_| why.to_owned())?;
    found.next().ok_or_else(|| why.to_owned())
}

//! A small etcd v3 client: Range, Put, DeleteRange, Compact, Txn and Watch, over HTTP/2 on loopback, plain or with TLS.
//!
//! Written by hand because the common client crate needs protoc and Google's proto files at build time.

use crate::client::root_cause;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;

pub mod proto;

use proto::{
    CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    compare, request_op, watch_request,
};
pub use proto::{Event, EventType, KeyValue};

/// Longest answer accepted, in bytes: a whole registry of a test cluster fits many times.
const MAX_MESSAGE: usize = 256 << 20;
/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one etcd; cloning shares it.
#[derive(Debug, Clone)]
pub struct Etcd {
    endpoint: String,
    channel: Channel,
}

/// What a client of etcd shows and trusts, in PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The authority of the server's certificate.
    pub authority: String,
    /// The certificate of the client.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// The state of a key range at one revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The revision of the store when it was read.
    pub revision: i64,
    /// Keys and values, ascending by key.
    pub kvs: Vec<KeyValue>,
}

impl Etcd {
    /// A client for `http://127.0.0.1:PORT`; connects at the first call.
    ///
    /// # Errors
    /// Text that is no URL.
    pub fn new(endpoint: &str) -> Result<Self, EtcdError> {
        Self::lazily(endpoint, Ok)
    }

    /// The same for `https://127.0.0.1:PORT`, with a client certificate.
    ///
    /// # Errors
    /// Text that is no URL, or certificates that are none.
    pub fn with_tls(endpoint: &str, files: &ClientCertificate) -> Result<Self, EtcdError> {
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&files.authority))
            .identity(Identity::from_pem(&files.certificate, &files.key));
        Self::lazily(endpoint, |endpoint| endpoint.tls_config(config))
    }

    fn lazily(
        endpoint: &str,
        secured: impl FnOnce(Endpoint) -> Result<Endpoint, tonic::transport::Error>,
    ) -> Result<Self, EtcdError> {
        let bad =
            |error: tonic::transport::Error| EtcdError::Endpoint { endpoint: endpoint.into(), why: root_cause(&error) };
        let channel = Endpoint::from_shared(endpoint.to_string()).and_then(secured).map_err(bad)?;
        let channel = channel.connect_timeout(CONNECT_TIMEOUT).connect_lazy();
        Ok(Etcd { endpoint: endpoint.to_string(), channel })
    }

    /// The URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// One key; `None` if it does not exist.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, EtcdError> {
        let request = RangeRequest { key: key.into(), ..Default::default() };
        let response: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(response.kvs.into_iter().next())
    }

    /// All keys with a prefix, at the newest revision.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn list(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        self.range(prefix.as_bytes(), &prefix_end(prefix.as_bytes())).await
    }

    /// All keys from `start` to before `end`, at the newest revision.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn range(&self, start: &[u8], end: &[u8]) -> Result<Snapshot, EtcdError> {
        let request = RangeRequest { key: start.into(), range_end: end.into() };
        let response: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(Snapshot { revision: response.header.unwrap_or_default().revision, kvs: response.kvs })
    }

    /// Writes a key and returns the revision of the write.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<i64, EtcdError> {
        let request = PutRequest { key: key.into(), value: value.into() };
        let response: PutResponse = self.call("/etcdserverpb.KV/Put", request).await?;
        Ok(response.header.unwrap_or_default().revision)
    }

    /// Removes a key; true if it existed.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn delete(&self, key: &str) -> Result<bool, EtcdError> {
        let request = DeleteRangeRequest { key: key.into(), ..Default::default() };
        let response: DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
        Ok(response.deleted > 0)
    }

    /// Removes every key and the history of all of them: what was there before cannot be read any more.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn remove_everything(&self) -> Result<(), EtcdError> {
        // One zero byte and one zero byte again mean all keys there are.
        let request = DeleteRangeRequest { key: vec![0], range_end: vec![0] };
        let response: DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
        // A store that was empty has no revision of its own to compact at.
        if response.deleted > 0 {
            let revision = response.header.unwrap_or_default().revision;
            let request = CompactionRequest { revision, physical: true };
            let CompactionResponse {} = self.call("/etcdserverpb.KV/Compact", request).await?;
        }
        Ok(())
    }

    /// Writes a key if its modification revision is still the given one (0: the key does not exist); false if not.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn put_if_unchanged(
        &self,
        key: &str,
        mod_revision: i64,
        value: impl Into<Vec<u8>>,
    ) -> Result<bool, EtcdError> {
        let put = PutRequest { key: key.into(), value: value.into() };
        let request = TxnRequest {
            compare: vec![Compare {
                result: compare::EQUAL,
                target: compare::MOD,
                key: key.into(),
                target_union: Some(compare::TargetUnion::ModRevision(mod_revision)),
            }],
            success: vec![RequestOp { request: Some(request_op::Request::Put(put)) }],
        };
        let response: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        Ok(response.succeeded)
    }

    /// Watches the keys from `start` to before `end` from a revision on.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn watch(&self, start: &[u8], end: &[u8], from_revision: i64) -> Result<Watch, EtcdError> {
        let create = WatchCreateRequest { key: start.into(), range_end: end.into(), start_revision: from_revision };
        let request = WatchRequest { request: Some(watch_request::Request::Create(create)) };
        // The request stream must stay open: etcd ends the watch when it closes.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let response = grpc.streaming(tonic::Request::new(requests), path, codec).await;
        Ok(Watch { stream: response.map_err(|status| self.failed("Watch", &status))?.into_inner() })
    }

    async fn call<Q, R>(&self, path: &'static str, request: Q) -> Result<R, EtcdError>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, R>::default();
        let response = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
        Ok(response.map_err(|status| self.failed(path, &status))?.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, EtcdError> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(|error| EtcdError::Call {
            endpoint: self.endpoint.clone(),
            call: "connect",
            why: root_cause(&error),
        })?;
        Ok(grpc)
    }

    fn failed(&self, call: &'static str, status: &tonic::Status) -> EtcdError {
        EtcdError::Call { endpoint: self.endpoint.clone(), call, why: status.to_string() }
    }
}

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    stream: tonic::Streaming<WatchResponse>,
}

/// What a watch delivered: events in revision order.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The revision of the store when the batch was sent.
    pub revision: i64,
    /// The events, ascending by revision.
    pub events: Vec<Event>,
}

impl Watch {
    /// The next batch; an empty one is possible.
    ///
    /// # Errors
    /// The watch was canceled, history was compacted, or the connection is gone: a gap cannot be excluded.
    pub async fn next(&mut self) -> Result<Batch, EtcdError> {
        let lost = |why: String| EtcdError::WatchLost { why };
        let response = self.stream.message().await.map_err(|status| lost(status.to_string()))?;
        let response = response.ok_or_else(|| lost("etcd closed the stream".into()))?;
        if response.compact_revision > 0 {
            return Err(lost(format!("history before revision {} was compacted", response.compact_revision)));
        }
        if response.canceled {
            return Err(lost(format!("etcd canceled the watch: {}", response.cancel_reason)));
        }
        Ok(Batch { revision: response.header.unwrap_or_default().revision, events: response.events })
    }
}

/// The end of the range of all keys with a prefix.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// etcd could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// Not a URL.
    #[error("`{endpoint}` is not an etcd URL: {why}")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// The parser's words.
        why: String,
    },
    /// A call failed.
    #[error("etcd at {endpoint} did not answer {call}: {why}")]
    Call {
        /// The URL.
        endpoint: String,
        /// The call.
        call: &'static str,
        /// The transport's or etcd's words.
        why: String,
    },
    /// A watch ended although nobody ended it.
    #[error("etcd watch lost: {why}")]
    WatchLost {
        /// Why.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_after_it() {
        assert_eq!(prefix_end(b"/registry/"), b"/registry0");
        assert_eq!(prefix_end(&[b'a', 0xff]), b"b");
        assert_eq!(prefix_end(&[0xff, 0xff]), [0]);
    }
}

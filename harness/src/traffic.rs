//! Clients that create, change and delete Services through one server each and record every call.

use crate::client::root_cause;
use crate::history::{Entry, Operation, OperationKind, Outcome, ServerId, ServiceKey, ServiceType};
use crate::journal::Journal;
use crate::refusal;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use std::net::IpAddr;

/// The namespace of every Service that a scenario makes in clusters of our own; it exists from the first moment of an
/// apiserver on. In clusters of others each case has one of its own.
pub const NAMESPACE: &str = "default";
/// The port of every Service; nothing listens there.
const SERVICE_PORT: i32 = 80;

/// A client of one server. It has one call in flight at a time: every call takes it by `&mut`.
pub struct Client {
    id: u16,
    server: ServerId,
    client: kube::Client,
    journal: Journal,
    namespace: String,
}

impl Client {
    /// A client with a number of its own in the case.
    pub fn new(id: u16, server: ServerId, client: kube::Client, journal: Journal, namespace: String) -> Self {
        Client { id, server, client, journal, namespace }
    }

    /// The server it asks.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Namespace and name of a Service that it makes.
    pub fn key(&self, name: &str) -> ServiceKey {
        ServiceKey { namespace: self.namespace.clone(), name: name.into() }
    }

    /// Creates a ClusterIP Service; with an empty `wanted` the server picks the address.
    pub async fn create(&mut self, name: &str, wanted: &[IpAddr]) -> Operation {
        let kind = OperationKind::CreateService { service: self.key(name), wanted: wanted.to_vec() };
        self.create_as(kind, mk_service(name, wanted)).await
    }

    /// Creates a Service of the scenario's making.
    pub async fn create_as(&mut self, kind: OperationKind, service: Service) -> Operation {
        let api: Api<Service> = self.services();
        self.record(kind, async || Ok(Some(api.create(&PostParams::default(), &service).await?))).await
    }

    /// Deletes a Service.
    pub async fn delete(&mut self, name: &str) -> Operation {
        let api: Api<Service> = self.services();
        let kind = OperationKind::DeleteService { service: self.key(name) };
        self.record(kind, async || Ok(api.delete(name, &DeleteParams::default()).await?.left())).await
    }

    /// Changes the type of a Service: to `ExternalName`, which gives its addresses back, or to another type.
    pub async fn change_type(&mut self, name: &str, service_type: ServiceType) -> Operation {
        let api: Api<Service> = self.services();
        let spec = if service_type == ServiceType::ExternalName {
            json!({"type": service_type, "externalName": "skewlab.invalid", "clusterIP": "", "clusterIPs": null})
        } else {
            json!({"type": service_type, "externalName": null})
        };
        let kind = OperationKind::ChangeType { service: self.key(name), service_type };
        let patch = Patch::Merge(json!({"spec": spec}));
        self.record(kind, async || Ok(Some(api.patch(name, &PatchParams::default(), &patch).await?))).await
    }

    /// Creates a ServiceCIDR.
    pub async fn create_service_cidr(&mut self, name: &str, cidrs: &[IpNet]) -> Operation {
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let object = ServiceCIDR {
            metadata: ObjectMeta { name: Some(name.into()), ..Default::default() },
            spec: Some(ServiceCIDRSpec { cidrs: Some(cidrs.iter().map(ToString::to_string).collect()) }),
            status: None,
        };
        let kind = OperationKind::CreateServiceCidr { name: name.into(), cidrs: cidrs.to_vec() };
        self.record(kind, async || Ok(answer(api.create(&PostParams::default(), &object).await?.metadata))).await
    }

    /// Deletes a ServiceCIDR.
    pub async fn delete_service_cidr(&mut self, name: &str) -> Operation {
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let kind = OperationKind::DeleteServiceCidr { name: name.into() };
        let call = async || {
            let deleted = api.delete(name, &DeleteParams::default()).await?.left();
            Ok(answer(deleted.map(|object| object.metadata).unwrap_or_default()))
        };
        self.record(kind, call).await
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn record(
        &mut self,
        kind: OperationKind,
        call: impl AsyncFnOnce() -> Result<Option<Service>, kube::Error>,
    ) -> Operation {
        let invoked = self.journal.now();
        let outcome = outcome_of(call().await);
        let returned = self.journal.now();
        let operation = Operation { client: self.id, server: self.server, kind, invoked, returned, outcome };
        self.journal.push(Entry::Operation(Box::new(operation.clone())));
        operation
    }
}

fn outcome_of(result: Result<Option<Service>, kube::Error>) -> Outcome {
    match result {
        Ok(service) => {
            let service = service.unwrap_or_default();
            let ips = service.spec.unwrap_or_default().cluster_ips.unwrap_or_default();
            let metadata = service.metadata;
            Outcome::Ok {
                granted: ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
                uid: metadata.uid.unwrap_or_default(),
                revision: metadata.resource_version.and_then(|it| it.parse().ok()).unwrap_or_default(),
            }
        }
        Err(kube::Error::Api(status)) => {
            let (code, reason, message) = (status.code, status.reason, status.message);
            if refusal::is_definite(code, &reason, &message) {
                Outcome::Refused { code, reason, message }
            } else {
                Outcome::Unknown { detail: format!("{code} {reason}: {message}") }
            }
        }
        Err(error) => Outcome::Unknown { detail: root_cause(&error) },
    }
}

/// An answer without addresses, as a Service that has only metadata.
fn answer(metadata: ObjectMeta) -> Option<Service> {
    Some(Service { metadata, ..Default::default() })
}

/// A ClusterIP Service without a selector.
pub fn mk_service(name: &str, ips: &[IpAddr]) -> Service {
    let texts: Vec<String> = ips.iter().map(ToString::to_string).collect();
    Service {
        metadata: ObjectMeta { name: Some(name.into()), ..Default::default() },
        spec: Some(ServiceSpec {
            cluster_ip: texts.first().cloned(),
            cluster_ips: (!texts.is_empty()).then_some(texts),
            ports: Some(vec![ServicePort { port: SERVICE_PORT, ..Default::default() }]),
            ..Default::default()
        }),
        status: None,
    }
}

/// Whether the namespace of the scenarios exists yet; an apiserver makes it shortly after it is ready.
///
/// # Errors
/// The server does not answer with 2xx.
pub async fn namespace_exists(client: &kube::Client) -> Result<bool, kube::Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    Ok(api.get_opt(NAMESPACE).await?.is_some())
}

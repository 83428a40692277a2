//! What stands for `docker` in a program that was built without the cargo feature `containers`: no container ever is.

use super::{Blueprint, ContainerError};
use crate::wait::NotYet;
use std::net::SocketAddrV4;
use std::time::Duration;

/// A container, of which there is none.
pub enum Container {}

/// Makes no network.
///
/// # Errors
/// Always.
pub async fn create_network(_case: &str) -> Result<(), ContainerError> {
    Err(ContainerError::NotBuilt)
}

impl Container {
    /// Starts none.
    ///
    /// # Errors
    /// Always.
    pub async fn start(_blueprint: Blueprint<'_>) -> Result<Container, ContainerError> {
        Err(ContainerError::NotBuilt)
    }

    /// Where its port is published.
    pub fn address(&self) -> SocketAddrV4 {
        match *self {}
    }

    /// An error if it is gone.
    ///
    /// # Errors
    /// There is none.
    pub async fn check_running(&mut self) -> Result<(), ContainerError> {
        match *self {}
    }

    /// Looks until `probe` is content.
    ///
    /// # Errors
    /// There is none.
    pub async fn ready<T>(
        &mut self,
        _longest: Duration,
        _probe: impl AsyncFnMut() -> Result<T, NotYet>,
    ) -> Result<T, ContainerError> {
        match *self {}
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// There is none.
    pub async fn stop(self, _grace: Duration) -> Result<(), ContainerError> {
        match self {}
    }

    /// Kills it.
    ///
    /// # Errors
    /// There is none.
    pub async fn kill(&self) -> Result<(), ContainerError> {
        match *self {}
    }

    /// Removes it.
    ///
    /// # Errors
    /// There is none.
    pub async fn remove(self) -> Result<(), ContainerError> {
        match self {}
    }

    /// Stops it from running without ending it.
    ///
    /// # Errors
    /// There is none.
    pub async fn pause(&self) -> Result<(), ContainerError> {
        match *self {}
    }

    /// Lets a paused one go on.
    ///
    /// # Errors
    /// There is none.
    pub async fn resume(&self) -> Result<(), ContainerError> {
        match *self {}
    }

    /// Resident memory in bytes.
    pub async fn resident_memory(&self) -> u64 {
        match *self {}
    }
}

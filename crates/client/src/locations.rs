//! Where the processes of a run may read and write checkpoints, whatever the coordinator names.

use crate::Connect;
use node::AllowedLocations;

/// The environment variable with further locations, separated by commas.
pub const CHECKPOINT_LOCATIONS_VARIABLE: &str = "SLACKWATER_CHECKPOINT_LOCATIONS";

/// What a node may use: in a secured run the locations of its own settings, and `own`, those of a
/// coordinator in the same process. An insecure run without such settings trusts its coordinator.
pub(crate) fn allowed(connect: &Connect, own: &[String]) -> AllowedLocations {
    let variable = std::env::var(CHECKPOINT_LOCATIONS_VARIABLE).unwrap_or_default();
    let named = connect.checkpoint_locations.iter().map(String::as_str);
    let named: Vec<&str> = named.chain(variable.split(',').filter(|location| !location.is_empty())).collect();
    if named.is_empty() && connect.access.is_insecure() {
        return AllowedLocations::Any;
    }
    AllowedLocations::within(named.into_iter().chain(own.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Access;

    #[test]
    fn secured_nodes_use_the_locations_of_their_own_settings_only() {
        let connect = |access, locations: &[&str]| Connect {
            access,
            checkpoint_locations: locations.iter().map(|&location| location.to_owned()).collect(),
            ..Connect::to("head:7000")
        };
        let token = || Access::TokenFile("job.token".into());
        let own = ["/own".to_owned()];
        assert_eq!(allowed(&connect(Access::Insecure, &[]), &own), AllowedLocations::Any);
        assert_eq!(allowed(&connect(Access::Insecure, &["/a"]), &own), AllowedLocations::within(["/a", "/own"]));
        assert_eq!(allowed(&connect(token(), &[]), &[]), AllowedLocations::within::<&str>([]));
        assert_eq!(allowed(&connect(token(), &["/a"]), &own), AllowedLocations::within(["/a", "/own"]));
    }
}

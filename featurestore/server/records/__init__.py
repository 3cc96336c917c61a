"""What pages and the REST interface tell, as plain records that both take."""

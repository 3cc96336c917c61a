
CREATE TABLE featuregroups (
	id SERIAL NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	table_id VARCHAR(64) NOT NULL, 
	delta_version BIGINT NOT NULL, 
	spec TEXT NOT NULL, 
	description TEXT DEFAULT '' NOT NULL, 
	job VARCHAR(63), 
	created BIGINT NOT NULL, 
	changed BIGINT DEFAULT '0' NOT NULL, 
	features INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_featuregroups_name_version UNIQUE (name, version)
)

;
CREATE INDEX ix_featuregroups_features ON featuregroups (name, version, features);
CREATE INDEX ix_featuregroups_changed ON featuregroups (changed);

CREATE TABLE tags (
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	key VARCHAR(255) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (kind, name, version, key)
)

;

CREATE TABLE lineage (
	id SERIAL NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	delta_version BIGINT, 
	job VARCHAR(63), 
	run_id VARCHAR(64), 
	source TEXT NOT NULL, 
	source_version INTEGER, 
	source_delta_version BIGINT, 
	detail TEXT, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_lineage_source ON lineage (source, source_version);
CREATE INDEX ix_lineage_edges ON lineage (kind, name, version, job, source, source_version);
CREATE INDEX ix_lineage_readers ON lineage (source, kind, name, version, job, source_version);
CREATE INDEX ix_lineage_job ON lineage (job, kind, name, version, source, source_version);

CREATE TABLE origins (
	id VARCHAR(128) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	creation INTEGER NOT NULL, 
	ended BOOLEAN NOT NULL, 
	sealed BOOLEAN NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_origins_creation UNIQUE (kind, name, version, creation)
)

;

CREATE TABLE origin_edges (
	derived VARCHAR(128) NOT NULL, 
	origin VARCHAR(128) NOT NULL, 
	PRIMARY KEY (derived, origin)
)

;
CREATE INDEX ix_origin_edges_origin ON origin_edges (origin);

CREATE TABLE window_features (
	id SERIAL NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	feature TEXT NOT NULL, 
	source TEXT NOT NULL, 
	source_version INTEGER, 
	source_column TEXT NOT NULL, 
	function VARCHAR(32) NOT NULL, 
	over_us BIGINT, 
	offset_us BIGINT NOT NULL, 
	condition TEXT, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_window_features_output ON window_features (kind, name, version);

CREATE TABLE search_documents (
	id SERIAL NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	field VARCHAR(32) NOT NULL, 
	indexed BOOLEAN NOT NULL, 
	text TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_search_documents_field UNIQUE (kind, name, version, field)
)

;
CREATE INDEX ix_search_documents_indexed ON search_documents (indexed);

CREATE TABLE sources (
	name VARCHAR(63) NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY (name)
)

;

CREATE TABLE online_stores (
	name VARCHAR(63) NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY (name)
)

;

CREATE TABLE training_datasets (
	id SERIAL NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	manifest_hash VARCHAR(64) NOT NULL, 
	format VARCHAR(63) NOT NULL, 
	rows BIGINT NOT NULL, 
	description TEXT DEFAULT '' NOT NULL, 
	run_id VARCHAR(64), 
	created BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_training_datasets_name_version UNIQUE (name, version)
)

;
CREATE INDEX ix_training_datasets_created ON training_datasets (created);

CREATE TABLE feature_views (
	id SERIAL NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_feature_views_name_version UNIQUE (name, version)
)

;

CREATE TABLE validation_reports (
	id SERIAL NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	delta_version BIGINT, 
	run_id VARCHAR(64), 
	policy VARCHAR(16) NOT NULL, 
	success BOOLEAN NOT NULL, 
	rows BIGINT NOT NULL, 
	report TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_validation_reports_failed ON validation_reports (kind, id) WHERE success IS false;
CREATE INDEX ix_validation_reports_name ON validation_reports (kind, name, version);

CREATE TABLE intents (
	run_id VARCHAR(64) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (run_id)
)

;
CREATE INDEX ix_intents_name ON intents (kind, name);

CREATE TABLE owners (
	name VARCHAR(128) NOT NULL, 
	seen BIGINT NOT NULL, 
	PRIMARY KEY (name)
)

;

CREATE TABLE job_definitions (
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	spec TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	registered BIGINT NOT NULL, 
	PRIMARY KEY (name, version)
)

;

CREATE TABLE project_definitions (
	kind VARCHAR(32) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (kind, name, version)
)

;
CREATE INDEX ix_project_definitions_project ON project_definitions (project);

CREATE TABLE job_states (
	name VARCHAR(63) NOT NULL, 
	paused BOOLEAN DEFAULT false NOT NULL, 
	watermark BIGINT, 
	lease_owner VARCHAR(128), 
	PRIMARY KEY (name)
)

;

CREATE TABLE runs (
	run_id VARCHAR(64) NOT NULL, 
	job VARCHAR(63) NOT NULL, 
	job_version INTEGER NOT NULL, 
	window_start BIGINT NOT NULL, 
	window_end BIGINT NOT NULL, 
	windows INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	transaction_app TEXT, 
	transaction_number BIGINT, 
	inputs TEXT NOT NULL, 
	started BIGINT NOT NULL, 
	ended BIGINT, 
	rows BIGINT, 
	delta_version BIGINT, 
	memory BIGINT, 
	error TEXT, 
	hint TEXT, 
	log TEXT, 
	PRIMARY KEY (run_id)
)

;
CREATE INDEX ix_runs_job ON runs (job, started);
CREATE INDEX ix_runs_state ON runs (job, state, started);

CREATE TABLE windows (
	job VARCHAR(63) NOT NULL, 
	window_start BIGINT NOT NULL, 
	window_end BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	run_id VARCHAR(64) NOT NULL, 
	target_version INTEGER, 
	tries INTEGER NOT NULL, 
	updated BIGINT NOT NULL, 
	inputs TEXT NOT NULL, 
	PRIMARY KEY (job, window_start, window_end)
)

;
CREATE INDEX ix_windows_state ON windows (job, state, window_start);
CREATE INDEX ix_windows_end ON windows (job, window_end);

CREATE TABLE monitor_results (
	monitor VARCHAR(63) NOT NULL, 
	window_start BIGINT NOT NULL, 
	window_end BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	rows BIGINT NOT NULL, 
	run_id VARCHAR(64) NOT NULL, 
	report TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (monitor, window_start, window_end)
)

;
CREATE INDEX ix_monitor_results_end ON monitor_results (monitor, window_end);

CREATE TABLE monitor_acceptances (
	id VARCHAR(64) NOT NULL, 
	monitor VARCHAR(63) NOT NULL, 
	window_start BIGINT, 
	until BIGINT NOT NULL, 
	subjects TEXT NOT NULL, 
	note TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_monitor_acceptances_monitor ON monitor_acceptances (monitor, until);

CREATE TABLE alert_channels (
	name VARCHAR(63) NOT NULL, 
	uri TEXT NOT NULL, 
	secret TEXT, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
)

;

CREATE TABLE incidents (
	id VARCHAR(64) NOT NULL, 
	job VARCHAR(63) NOT NULL, 
	family VARCHAR(32) NOT NULL, 
	began BIGINT NOT NULL, 
	reminded BIGINT NOT NULL, 
	ended BIGINT, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_incidents_open ON incidents (began) WHERE ended IS NULL;
CREATE INDEX ix_incidents_job ON incidents (job, ended);

CREATE TABLE outbox (
	id VARCHAR(64) NOT NULL, 
	channel VARCHAR(63) NOT NULL, 
	message TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_try BIGINT NOT NULL, 
	holder VARCHAR(128), 
	delivered BIGINT, 
	error TEXT, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_outbox_next_try ON outbox (delivered, next_try);

CREATE TABLE experiment_runs (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	parent VARCHAR(64), 
	number INTEGER, 
	dataset VARCHAR(63), 
	dataset_version INTEGER, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_experiment_runs_created ON experiment_runs (created, id);
CREATE INDEX ix_experiment_runs_top_dataset ON experiment_runs (dataset, created, id) WHERE parent IS NULL;
CREATE INDEX ix_experiment_runs_reads ON experiment_runs (name, dataset, dataset_version);
CREATE INDEX ix_experiment_runs_trials ON experiment_runs (parent, number) WHERE parent IS NOT NULL;
CREATE INDEX ix_experiment_runs_top_name ON experiment_runs (name, created, id) WHERE parent IS NULL;
CREATE INDEX ix_experiment_runs_readers ON experiment_runs (dataset, dataset_version, name);
CREATE INDEX ix_experiment_runs_top ON experiment_runs (created, id) WHERE parent IS NULL;
CREATE INDEX ix_experiment_runs_top_version ON experiment_runs (dataset, dataset_version, created, id) WHERE parent IS NULL;
CREATE INDEX ix_experiment_runs_name ON experiment_runs (name, created);

CREATE TABLE models (
	name VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	stage VARCHAR(16) NOT NULL, 
	run VARCHAR(64), 
	dataset VARCHAR(63) NOT NULL, 
	dataset_version INTEGER NOT NULL, 
	experiment VARCHAR(63), 
	PRIMARY KEY (name, version)
)

;
CREATE INDEX ix_models_experiment ON models (experiment, name, version);
CREATE INDEX ix_models_run ON models (run);
CREATE INDEX ix_models_dataset ON models (dataset, dataset_version);

CREATE TABLE stream_offsets (
	job VARCHAR(63) NOT NULL, 
	topic VARCHAR(255) NOT NULL, 
	partition INTEGER NOT NULL, 
	"offset" BIGINT NOT NULL, 
	end_offset BIGINT, 
	lag BIGINT, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (job, topic, partition)
)

;

CREATE TABLE stream_progress (
	job VARCHAR(63) NOT NULL, 
	topic_id VARCHAR(64), 
	rows_per_second FLOAT, 
	bad_records BIGINT NOT NULL, 
	last_commit BIGINT, 
	delta_version BIGINT, 
	looked BIGINT NOT NULL, 
	PRIMARY KEY (job)
)

;

CREATE TABLE users (
	name VARCHAR(127) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	password TEXT, 
	issuer VARCHAR(255), 
	subject VARCHAR(255), 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name), 
	CONSTRAINT uq_users_identity UNIQUE (issuer, subject)
)

;

CREATE TABLE private_groups (
	featuregroup VARCHAR(63) NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (featuregroup)
)

;

CREATE TABLE failed_sign_ins (
	id SERIAL NOT NULL, 
	who VARCHAR(191) NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_failed_sign_ins_who ON failed_sign_ins (who, at);

CREATE TABLE audit_log (
	id SERIAL NOT NULL, 
	at BIGINT NOT NULL, 
	who VARCHAR(127) NOT NULL, 
	how VARCHAR(191) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
)

;
CREATE INDEX ix_audit_log_at ON audit_log (at);

CREATE TABLE features (
	featuregroup_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	type TEXT NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	description TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (featuregroup_id, position), 
	FOREIGN KEY(featuregroup_id) REFERENCES featuregroups (id) ON DELETE CASCADE
)

;
CREATE INDEX ix_features_name ON features (name);

CREATE TABLE training_dataset_pins (
	training_dataset_id INTEGER NOT NULL, 
	featuregroup VARCHAR(63) NOT NULL, 
	version INTEGER NOT NULL, 
	delta_version BIGINT NOT NULL, 
	table_id VARCHAR(64), 
	PRIMARY KEY (training_dataset_id, featuregroup, version, delta_version), 
	FOREIGN KEY(training_dataset_id) REFERENCES training_datasets (id) ON DELETE CASCADE
)

;
CREATE INDEX ix_pins_featuregroup ON training_dataset_pins (featuregroup, version);

CREATE TABLE tokens (
	id VARCHAR(32) NOT NULL, 
	username VARCHAR(127) NOT NULL, 
	label TEXT NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	created BIGINT NOT NULL, 
	expires BIGINT, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_hash UNIQUE (hash), 
	FOREIGN KEY(username) REFERENCES users (name) ON DELETE CASCADE
)

;
CREATE INDEX ix_tokens_username ON tokens (username);

CREATE TABLE group_roles (
	featuregroup VARCHAR(63) NOT NULL, 
	username VARCHAR(127) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	PRIMARY KEY (featuregroup, username), 
	FOREIGN KEY(username) REFERENCES users (name) ON DELETE CASCADE
)

;
CREATE INDEX ix_group_roles_username ON group_roles (username);

CREATE TABLE sign_ins (
	hash VARCHAR(64) NOT NULL, 
	username VARCHAR(127) NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (hash), 
	FOREIGN KEY(username) REFERENCES users (name) ON DELETE CASCADE
)

;
CREATE INDEX ix_sign_ins_username ON sign_ins (username);

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)

;

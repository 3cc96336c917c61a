{{ config(materialized='ephemeral') }}
select order_id, customer_id, amount, status, ordered_at from {{ ref('raw_orders') }}

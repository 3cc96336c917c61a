select country, count(*) as customers, max(updated_at) as updated_at from {{ ref('raw_customers') }} group by country

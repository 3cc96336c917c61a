select country, count(*) as customers from {{ ref('raw_customers') }} group by country

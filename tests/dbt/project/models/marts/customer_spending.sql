select customer_id, ordered_at,
       sum(amount) over (partition by customer_id order by ordered_at) as spent,
       count(*) over (partition by customer_id order by ordered_at) as orders
from {{ ref('orders') }}

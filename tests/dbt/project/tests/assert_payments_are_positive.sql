select order_id, amount from {{ ref('orders') }} where status = 'paid' and amount <= 0

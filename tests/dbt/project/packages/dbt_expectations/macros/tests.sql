{% test expect_column_values_to_be_between(model, column_name, min_value=none, max_value=none, row_condition=none) %}
select * from {{ model }} where {{ column_name }} < {{ min_value }}
{% endtest %}

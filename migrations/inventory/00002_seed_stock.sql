-- +goose Up

-- Something to sell: ten skus with more than a workshop can order, and one that
-- runs out after ten.
insert into stock (sku, on_hand) select 'SKU-' || n, 1000000 from generate_series(1, 10) n;
insert into stock (sku, on_hand) values ('SKU-RARE', 10);

-- +goose Down
delete from stock where sku in ('SKU-1', 'SKU-2', 'SKU-3', 'SKU-4', 'SKU-5', 'SKU-6', 'SKU-7', 'SKU-8', 'SKU-9', 'SKU-10', 'SKU-RARE');
